# make demo and make test do all their own set-up; the second call starts at once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test simulate storm bench lint clean

KINDS := kill,kill-while-saving,stop,kill-the-supervisor,leak-a-grandchild,truncate,flip-bit,drop-seal
demo: $(READY)  # those that need no root
	@mkdir -p out
	$(BIN)/lastgood chaos config/demo.yaml --faults 8 --seed 1 --kinds $(KINDS) --report out/demo-report.html

test: $(READY)
	$(BIN)/python -m pytest -m "not heavy" -n 2 --dist worksteal

SEEDS ?= 2000
simulate: $(READY)  # so many lives of the supervisor in a fake world; FIRST=SEED SEEDS=1 repeats one
	$(BIN)/python -m tests.simulator --seeds $(SEEDS) $(addprefix --first ,$(FIRST))

KILLS ?= 300
storm: $(READY)  # so many real kills of trainer, tree and supervisor, over ten short runs; SEED=N repeats one
	$(BIN)/python -m tests.storm --kills $(KILLS) $(addprefix --seed ,$(SEED))

bench: $(READY)  # every row of the table, or with ROW=verify-sealed that one
	$(BIN)/python -m benchmarks $(addprefix --row ,$(ROW))

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[trainer,dev]'
	@touch $(READY)

clean:
	rm -rf $(VENV) out build *.egg-info
