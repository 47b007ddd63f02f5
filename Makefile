SHELL := /bin/bash
.DEFAULT_GOAL := help

help:  ## what there is
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 14

run:  ## set everything up, then the demo: a real cluster, the proxy, good and noisy clients
	@python=$$(deploy/setup.sh demo) && compiled=$$(deploy/compiled.sh) && export KAFKA_THROTTLE_COMPILED=$$compiled && exec "$$python" -m demo $(ARGS)

usage:  ## kafka-throttle usage, with Spark set up (ARGS="ingest --from SPOOL --table TABLE"): docs/reference/five-commands.md
	@python=$$(deploy/setup.sh pipeline) && exec "$$python" -m proxy usage $(ARGS)

lint:
	@python=$$(deploy/setup.sh dev) && bin=$$(dirname "$$python") && \
	"$$bin/ruff" format --check . && "$$bin/ruff" check . && "$$bin/mypy" && "$$bin/lint-imports"

test: lint  ## set everything up, then the tests that a change needs (about 15 minutes)
	@python=$$(deploy/setup.sh dev strace gcc libc6-dev haproxy libnss-wrapper) && exec "$$python" -m tests.run $(ARGS)

GO := $(shell command -v go /usr/local/go/bin/go | head -n 1)
nightly: $(if $(SHARD),,test)  ## all tests, then explore and simulate (an hour and a half); or one of six parts of the nightly tests (SHARD=3)
	@python=$$(deploy/setup.sh dev strace gcc libc6-dev $(if $(GO),,golang-go) haproxy nginx libnginx-mod-stream libnss-wrapper chromium krb5-kdc krb5-admin-server prometheus systemd buildah debootstrap) || exit; \
	for shard in $(or $(SHARD),1 2 3 4 5 6); do "$$python" -m tests.run --shard $$shard $(ARGS) || failed+=" $$shard"; done; \
	if [ "$$failed" ]; then echo "shards that failed:$$failed"; exit 1; fi
	$(if $(SHARD),,@$(MAKE) explore simulate)

check: nightly

durations:  ## keep what the last run of all shards took in tests/durations.json, which balances the next
	@python=$$(deploy/setup.sh dev) && exec "$$python" -m tests.shards

pythons:  ## the fast tests of the proxy on each Python from 3.11 to 3.14 that is found
	@deploy/pythons.sh $(ARGS)

explore:  ## what Hypothesis draws in tests, drawn anew each time; a failure is kept in .hypothesis (ARGS="tests/relay")
	@python=$$(deploy/setup.sh dev) && \
	exec "$$python" -m pytest -m hypothesis --hypothesis-profile exploring -n logical $(ARGS)

bench:  ## speed and memory beside HAProxy and nginx, what quotas cost, then with a real Kafka, about 25 minutes
	@python=$$(deploy/setup.sh dev gcc libc6-dev haproxy nginx libnginx-mod-stream) && mkdir -p build/bench && \
	compiled=$$(deploy/compiled.sh) && export KAFKA_THROTTLE_COMPILED=$$compiled && \
	"$$python" tests/bench/speed.py --json build/bench/speed.json --plot build/bench/speed.svg $(ARGS) && \
	"$$python" tests/bench/memory.py --json build/bench/memory.json && \
	"$$python" tests/bench/quota_cost.py --json build/bench/quota_cost.json && \
	"$$python" tests/bench/loop_lag.py --json build/bench/loop_lag.json && \
	"$$python" tests/bench/real_kafka.py --json build/bench/real_kafka.json

SECONDS ?= 600
simulate:  ## relays on fake time among simulated clients, nodes and networks, new seeds each run (SECONDS=600)
	@python=$$(deploy/setup.sh dev) && exec "$$python" -m tests.simulation --seconds $(SECONDS) --processes "$$(nproc)" $(ARGS)

conntest:  ## account for every record while everything breaks, until Ctrl-C (ARGS="--records 1000000")
	@python=$$(deploy/setup.sh dev) && exec "$$python" -m tests.conservation $(ARGS)

conformance:  ## Kafka's own quota classes beside ours, and a broker's quotas beside the proxy's, 40 minutes on a quiet machine
	@python=$$(deploy/setup.sh dev) && mkdir -p build/parity && \
	"$$python" -m tests.conformance && \
	"$$python" -m tests.parity --json build/parity/parity.json --plot build/parity/parity.webp $(ARGS) && \
	"$$python" -m tests.parity --tiny && "$$python" -m tests.parity --frames && \
	"$$python" -m tests.fidelity --throttles && "$$python" -m tests.fidelity --json build/parity/request-time.json

fuzz:  ## parsers of what strangers send, by atheris; how many inputs were tried (ARGS="--seconds 600 proxy-header")
	@python=$$(deploy/setup.sh fuzz) && exec "$$python" -m tests.fuzz $(ARGS)

COLUMN ?= produce-1
profile:  ## where the proxy's CPU time goes in one column of the benchmark (COLUMN=produce-1)
	@python=$$(deploy/setup.sh dev strace linux-perf gcc libc6-dev haproxy) && \
	"$$python" tests/bench/cpu_profile.py --column $(COLUMN) $(ARGS)

release:  ## the source, wheels for each Python that is here, checksums, bills of materials in dist/; then all tried in clean environments
	@deploy/release.sh dist && python=$$(deploy/setup.sh dev) && KAFKA_THROTTLE_DIST=$(CURDIR)/dist exec "$$python" -m pytest -q tests/test_release.py

KAFKA ?= 4.3.1
table:  ## make protocol/api_table.py and api_key.py anew from the message schemas in Kafka's jars (KAFKA=4.3.1)
	@python=$$(deploy/setup.sh dev) && \
	jars() { "$$python" -c "from kafka_throttle.common.jars import kafka_jars; print(kafka_jars('$$1'))"; } && \
	"$$python" deploy/make_api_table.py --out protocol \
	  "$$(jars $(KAFKA))/kafka-clients-$(KAFKA).jar" "$$(jars 3.9.2)/kafka-clients-3.9.2.jar"

format:  ## let ruff rewrite
	@bin=$$(dirname "$$(deploy/setup.sh dev)") && "$$bin/ruff" format . && "$$bin/ruff" check --fix .

lock:  ## pin the dependencies of pyproject.toml anew (needs uv)
	@pin() { uv pip compile --generate-hashes --python-version 3.11 --no-emit-index-url --no-header -q -o requirements$$1.lock "$${@:2}"; } && \
	pin "" pyproject.toml && \
	pin -demo pyproject.toml --group demo && \
	pin -pipeline pyproject.toml --extra pipeline && \
	pin -dev pyproject.toml --extra pipeline --group dev && \
	pin -fuzz pyproject.toml --group fuzz && \
	pin -build --group build && \
	pin -release --group release

.PHONY: help run usage lint test pythons nightly check durations explore simulate conntest conformance bench fuzz profile table release format lock
