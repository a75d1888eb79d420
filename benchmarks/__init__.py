"""Speed and size, measured side by side with what people would use instead.

    make bench                     every row; one table, and out/bench.json
    make bench ROW=verify-sealed   one row
    python -m benchmarks --quick   small sizes, to see that it runs; its verdicts mean little

A row is data and two callables (`rows.py`). Pairs are interleaved and take turns at going first, so that whatever the machine
does meanwhile meets both; the verdict comes from the interval of the median of the paired ratios, and is "too noisy to
tell" when that interval has the target inside. More pairs (`--pairs`) make it narrower.

The supervisor is measured as it is run, in a process of its own that tells its moments (`probe.py`).

Not covered: machines with other things to do; they only make it say more often that it cannot tell.
"""
