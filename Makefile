# The menu. `make` alone lists the verbs; each is a line or two, so that it can be run by hand as well.

.DEFAULT_GOAL := help
.PHONY: help demo test check fmt build packages release reproducible sim mutants fuzz fuzz-sessions blackbox failover-series pair-series stale-reads cache-proof cluster-cost cluster-scaling regress cache-replay demo-smoke web web-test tidy prepare bench-peers bench-instructions install docs clean
MAKEFLAGS += --no-print-directory

CARGO ?= cargo
# Where cargo puts what it builds; it may lie outside of this directory.
TARGET = $(shell $(CARGO) metadata --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
# The profile of the binary: what users get, or `dev`, which checks its assertions.
PROFILE ?= release
PGWEIR = $(TARGET)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))/pgweir
# For `make sim`: the number of seeds.
SEEDS ?= 2000
# For `make install`.
PREFIX ?= /usr/local
DESTDIR ?=
# All but examples in documentation, of which there are none.
TESTS = --lib --bins --tests
# Further arguments for the verb: make demo ARGS="--clients 500".
ARGS ?=

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: build ## a throw-away PostgreSQL, pgweir in front, the same load on both, a table (ARGS="--clients 500 --once", ARGS=--cluster, ARGS=--cache)
	@$(PGWEIR) demo $(ARGS)

test: prepare ## everything that CI tests: unit, simulation, fuzz corpus, black box, demo
	$(CARGO) test --workspace $(TESTS) --quiet
	@$(MAKE) web-test
	$(CARGO) run --quiet --bin sim -- --seeds $(SEEDS)
	$(CARGO) run --quiet --bin sim -- --clusters $(SEEDS)
	$(CARGO) run --quiet --bin sim -- --caches 200
	@$(MAKE) fuzz
	@$(MAKE) blackbox demo-smoke PROFILE=dev

check: ## before each commit, about a minute: format, clippy, unit tests, tidy
	@web/seal check
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --quiet -- -D warnings
	$(CARGO) test --workspace $(TESTS) --quiet

fmt: ## formats the code
	$(CARGO) fmt --all
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml

build: ## the binary (PROFILE=release)
	$(CARGO) build --profile $(PROFILE) -p pgweir

packages: ## deb, rpm and tar.gz of this checkout in target/packages, with checksums (ARCH=arm64 for another architecture)
	deploy/packages/build.py $(if $(ARCH),--arch $(ARCH)) $(ARGS)

release: ## the same, refused if the checkout is not exactly the tag of the version in Cargo.toml
	@$(MAKE) packages ARGS=--release

reproducible: ## builds the packages of this commit in two directories, and compares every byte; takes two release builds
	deploy/packages/reproducible

sim: ## simulated networks and servers, a world for each seed (SEEDS=2000; SEED=7 repeats one)
	$(CARGO) run --release --quiet --bin sim -- $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(ARGS)

mutants: ## small faults in a copy of the sources, and what finds each of them; takes an hour (ARGS="--only=multiplexing --seeds=500 --skip=100")
	$(CARGO) xtask mutants $(ARGS)

fuzz: ## runs every fuzz target over its corpus and mutations of it
	$(CARGO) test --quiet --manifest-path fuzz/Cargo.toml --target-dir "$(TARGET)"

fuzz-sessions: build ## random sessions of several clients against real PostgreSQL (ROUNDS=3000 SEED=1 CLIENTS=4 MAJOR=17 ARGS="--standbys 2 --cluster begin_undeclared=first")
	@tests/setup.sh
	cd tests && POOLER="$(PGWEIR)" ../.cache/venv/bin/python -m sessions.fuzz --rounds $(or $(ROUNDS),3000) $(if $(SEED),--seed $(SEED)) \
		$(if $(CLIENTS),--clients $(CLIENTS)) $(if $(MAJOR),--major $(MAJOR)) $(ARGS)

blackbox: build ## the binary against real PostgreSQL versions and real drivers (ARGS="-k copy --slow")
	POOLER="$(PGWEIR)" tests/run.sh $(ARGS)

failover-series: build ## switchovers and killed primaries under load, and what they cost clients (ARGS="--discovery sql --switchovers 50 --kills 100")
	@tests/setup.sh
	@POOLER="$(PGWEIR)" .cache/venv/bin/python tests/failover/series.py $(ARGS)

pair-series: build ## faults of two poolers under load, and how soon their clients are back (root; ARGS="--rounds 10 --ways vip --only kill,cut")
	@tests/setup.sh
	@POOLER="$(PGWEIR)" .cache/venv/bin/python tests/failover/pairs.py $(ARGS)

stale-reads: build ## changes and reads of them at standbys that are behind, and how often one is not shown (ARGS="--writes 200000 --clients 256")
	@tests/setup.sh
	@POOLER="$(PGWEIR)" .cache/venv/bin/python tests/failover/stale_reads.py $(ARGS)

cache-proof: build ## the query cache under writers, faults and DDL, every answer checked (ARGS="--hits 1000000 --major 15")
	@tests/setup.sh
	@POOLER="$(PGWEIR)" .cache/venv/bin/python tests/cache/proof.py $(ARGS)

cluster-cost: build ## what commit_outcome and causal_reads cost in transactions and CPU, in interleaved rounds (ARGS="--rounds 9 --seconds 5")
	@tests/setup.sh
	@POOLER="$(PGWEIR)" .cache/venv/bin/python tests/failover/cost.py $(ARGS)

cluster-scaling: build ## how reads grow with standbys: one node and two standbys with the same part of a processor each (root; ARGS="--rounds 6 --seconds 5")
	@tests/setup.sh
	@POOLER="$(PGWEIR)" .cache/venv/bin/python tests/failover/scaling.py $(ARGS)

regress: build ## PostgreSQL's regression suite with one node, two standbys and route=auto, or a query cache (ARGS="--suite .../src/test/regress --ways published,cache-wal")
	@tests/setup.sh
	@POOLER="$(PGWEIR)" .cache/venv/bin/python tests/regress/run.py $(ARGS)

cache-replay: build ## the queries of PostgreSQL's regression suite through the query cache, compared (ARGS="--suite .../src/test/regress --verify 1")
	@tests/setup.sh
	@POOLER="$(PGWEIR)" .cache/venv/bin/python tests/regress/replay.py $(ARGS)

demo-smoke: build ## the demo as a script runs it, and interrupted in each phase
	.ci/demo-smoke "$(PGWEIR)" demo

web: ## builds the dashboard's files in web/dist, which are committed (needs npm)
	@web/install.sh
	npm --prefix web run --silent build

web-test: ## the dashboard's types and unit tests, and that web/dist is what its sources build
	@web/test.sh

tidy: ## the house rules that neither rustfmt nor clippy knows
	@$(CARGO) xtask tidy

prepare: ## installs what tests need: Rust components, and as root Debian packages
	.ci/prepare
	tests/setup.sh

bench-peers: build ## pgweir, PgBouncer and direct, side by side (ARGS="--only select --rounds 5"); about 20 minutes
	$(PGWEIR) bench peers --install --output "$(TARGET)/bench-peers" $(ARGS)

bench-instructions: ## counts the hot paths' instructions with valgrind, compares with the baseline (ARGS="--only=lex --update")
	@$(CARGO) xtask instructions $(ARGS)

install: build ## copies the binary, the manual pages, the SQL script and the shell completions (PREFIX=/usr/local, DESTDIR)
	install -D -m 755 "$(PGWEIR)" "$(DESTDIR)$(PREFIX)/bin/pgweir"
	install -D -m 644 docs/man/pgweir.1 "$(DESTDIR)$(PREFIX)/share/man/man1/pgweir.1"
	install -D -m 644 deploy/sql/pgweir.sql "$(DESTDIR)$(PREFIX)/share/pgweir/pgweir.sql"
	install -D -m 644 docs/man/pgweir.ini.5 "$(DESTDIR)$(PREFIX)/share/man/man5/pgweir.ini.5"
	install -D -m 644 deploy/packages/completions/pgweir.bash "$(DESTDIR)$(PREFIX)/share/bash-completion/completions/pgweir"
	install -D -m 644 deploy/packages/completions/_pgweir "$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_pgweir"
	install -D -m 644 deploy/packages/completions/pgweir.fish "$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/pgweir.fish"

docs: ## writes the generated pages, diagrams and completions again, and builds the API documentation
	docs/img/draw.py
	UPDATE=1 $(CARGO) test --quiet -p pgweir-settings --test reference
	UPDATE=1 $(CARGO) test --quiet -p pgweir-control metrics
	UPDATE=1 $(CARGO) test --quiet -p pgweir completions
	$(CARGO) doc --workspace --no-deps --document-private-items

clean: ## removes what was built
	$(CARGO) clean
	$(CARGO) clean --manifest-path fuzz/Cargo.toml
