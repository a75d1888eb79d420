"""The report of a run or of a campaign: one HTML file that needs nothing else."""
