# make            build, vet, lint, test: what must pass before anything is handed in
# make help       the targets
# Everything that is downloaded or built stays in .cache/ and bin/, which git ignores.

GOLANGCI_LINT := v2.15.0
GOVULNCHECK   := v1.9.0
VICTORIA_LOGS := v1.52.2
VERSITYGW     := v1.8.0
# The version that squall embeds.
NATS_SERVER   := $(shell awk '$$1 == "github.com/nats-io/nats-server/v2" { print $$2 }' go.mod)
KUBERNETES    := v1.37.2
HELM          := v3.22.0
BUILDKIT      := v0.34.2
NFPM          := v2.45.2
CYCLONEDX     := v1.10.0

# What the tests run against for real, as COMMAND:PACKAGE of Debian. The race detector needs a C compiler.
TEST_PACKAGES := gcc:build-essential nginx:nginx-light prometheus-alertmanager:prometheus-alertmanager promtool:prometheus \
                 logrotate:logrotate haproxy:haproxy journalctl:systemd \
                 /usr/lib/systemd/systemd-journal-remote:systemd-journal-remote caddy:caddy apache2:apache2 \
                 '/usr/sbin/php-fpm[0-9]*:php-fpm' chromium:chromium
LINT_PACKAGES := shellcheck:shellcheck
# What `make bench-peers` compares with.
PEER_PACKAGES := mawk:mawk goaccess:goaccess mtail:mtail fail2ban-regex:fail2ban
# What `make test-packages` reads and runs the packages with.
PACKAGE_TOOLS := rpm:rpm systemctl:systemd nginx:nginx-light dbus-daemon:dbus curl:curl

CACHE := $(CURDIR)/.cache
BIN   := $(CACHE)/bin
export PATH := $(BIN):$(PATH):/usr/sbin:/sbin

VERSION_PKG := github.com/prometheus/common/version
VERSION  := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
REVISION := $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
BRANCH   := $(shell git rev-parse --abbrev-ref HEAD 2>/dev/null || echo unknown)
# The date of the commit, not of the build: the same commit gives the same bytes.
DATE     := $(shell git show -s --format=%cI HEAD 2>/dev/null || echo unknown)
LDFLAGS  := -s -w -X $(VERSION_PKG).Version=$(VERSION) -X $(VERSION_PKG).Revision=$(REVISION) \
            -X $(VERSION_PKG).Branch=$(BRANCH) -X $(VERSION_PKG).BuildDate=$(DATE)

# A package's version: v1.2.3 as it is, commits behind it as 1.2.3+n.hash, which sorts after it; without a tag 0.0.0~git….
PACKAGE_VERSION := $(shell git describe --tags --match 'v[0-9]*' --dirty 2>/dev/null | sed -E 's/^v//; s/-([0-9]+)-g/+\1.g/; s/-dirty/.dirty/' | grep . || \
                     echo "0.0.0-git$$(git show -s --format=%cd --date=format:%Y%m%d%H%M%S HEAD 2>/dev/null).$$(git rev-parse --short=9 HEAD 2>/dev/null)")
GOARCH   ?= $(shell go env GOARCH)
# The time of the commit: no archive holds another.
export SOURCE_DATE_EPOCH := $(shell git show -s --format=%ct HEAD 2>/dev/null || echo 0)

# The compiler's profile (cmd/squall/default.pgo) is for what is delivered and measured; tests would build all twice.
export GOFLAGS := -pgo=off $(GOFLAGS)

PKG      ?= ./...
FUZZTIME ?= 30s
BENCH    ?= .
OUT      ?= bin
export LOGS

.DEFAULT_GOAL := all
.PHONY: all build run vet lint test fuzz bench bench-peers soak pgo eval readme dashboards fmt clean help debian-test debian-lint debian-peers kube-apiserver test-k8s torture torture-fleet bench-fleet \
        deb rpm stage release test-packages debian-packages
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

all: build vet lint test ## build, vet, lint and test

build: ## bin/squall, static, with its version from git
	@CGO_ENABLED=0 GOARCH= go build -pgo=auto -trimpath -ldflags '$(LDFLAGS)' -o bin/squall ./cmd/squall

run: build ## run the demonstration, or read LOGS='/var/log/nginx/*access*.log'
	@exec bin/squall demo $${LOGS:+"$$LOGS"}

vet: ## go vet
	@go vet ./...

test: debian-test $(CACHE)/victoria-logs@$(VICTORIA_LOGS) $(CACHE)/versitygw@$(VERSITYGW) $(CACHE)/nats-server@$(NATS_SERVER) $(CACHE)/helm@$(HELM) ## all tests, with the race detector
	@go test -race -timeout 40m $(PKG)

torture: debian-test $(CACHE)/victoria-logs@$(VICTORIA_LOGS) ## the long versions: rotation, kills, stores and disks that fail
	@go test -tags torture -run Torture -timeout 25m -v ./pipeline/source ./cmd/squall

torture-fleet: $(CACHE)/nats-server@$(NATS_SERVER) ## fleets in a storm: killed, frozen, cut off (SQUALL_CUT=10m), clocks off, settings that differ, upgraded (SQUALL_OLDER=FILE)
	@go test -tags torture -run 'TestTortureFleet' -timeout 40m -v ./cmd/squall

bench-fleet: $(CACHE)/nats-server@$(NATS_SERVER) ## what adding up the panes of 10, 100 and 1,000 nodes costs on one processor, and how long a page takes
	@go test -run '^$$' -bench BenchmarkUnion -benchtime 2x -cpu 1 ./detectors/pane
	@go test -tags torture -run 'TestFleetDelay' -timeout 20m -v ./cmd/squall

kube-apiserver: $(CACHE)/kubernetes@$(KUBERNETES) ## build the API server of test-k8s

test-k8s: kube-apiserver ## the source kubernetes and the chart against a real API server, which is built first
	@go test -race -tags k8s -timeout 10m -run Kubernetes ./pipeline/source

deb rpm: stage $(CACHE)/nfpm@$(NFPM) ## bin/squall_*.deb, bin/squall-*.rpm for GOARCH (this machine's)
	@STAGE=$(CACHE)/stage/$(GOARCH) PACKAGE_ARCH=$(GOARCH) PACKAGE_VERSION=$(PACKAGE_VERSION) \
		nfpm package --config deploy/package/nfpm.yaml --packager $@ --target $(OUT)/ >$(CACHE)/nfpm.log 2>&1 || \
		{ cat $(CACHE)/nfpm.log >&2; exit 1; }

# What the packages hold that is built: the program, and what this machine's own program writes of itself.
stage: build
	@mkdir -p $(CACHE)/stage/$(GOARCH) $(OUT)
	@if [ "$$(go env GOHOSTOS)/$$(go env GOHOSTARCH)" = linux/$(GOARCH) ]; then cp bin/squall $(CACHE)/stage/$(GOARCH)/squall; else \
		CGO_ENABLED=0 GOOS=linux GOARCH=$(GOARCH) go build -pgo=auto -trimpath -ldflags '$(LDFLAGS)' -o $(CACHE)/stage/$(GOARCH)/squall ./cmd/squall; \
	fi
	@rm -rf $(CACHE)/stage/$(GOARCH)/man $(CACHE)/stage/$(GOARCH)/completion
	@bin/squall man $(CACHE)/stage/$(GOARCH)
	@find $(CACHE)/stage/$(GOARCH)/man -type f -exec gzip -9n {} +

# The packages' real road: a Debian with its systemd as process 1, in namespaces of its own.
test-packages: debian-packages $(CACHE)/nfpm@$(NFPM) ## install, run, upgrade and purge the .deb under a real systemd; needs root
	@go test -tags packages -timeout 10m -run '^TestPackage(Deb|RPM)$$' -v ./cmd/squall

release: $(CACHE)/nfpm@$(NFPM) $(CACHE)/cyclonedx-gomod@$(CYCLONEDX) ## bin/release: programs and packages for amd64 and arm64, SBOM, checksums
	@rm -rf bin/release && mkdir -p bin/release
	@for arch in amd64 arm64; do \
		$(MAKE) deb rpm GOARCH=$$arch OUT=bin/release || exit 1; \
		cp $(CACHE)/stage/$$arch/squall bin/release/squall-linux-$$arch; \
		CGO_ENABLED=0 GOOS=linux GOARCH=$$arch cyclonedx-gomod bin -json -noserial -notimestamp -std -version '$(VERSION)' \
			-output bin/release/squall-linux-$$arch.cdx.json bin/release/squall-linux-$$arch 2>/dev/null || exit 1; \
	done
	@cd bin/release && LC_ALL=C sh -c 'sha256sum -- * >SHA256SUMS'
	@cat bin/release/SHA256SUMS

lint: debian-lint $(CACHE)/golangci-lint@$(GOLANGCI_LINT) $(CACHE)/govulncheck@$(GOVULNCHECK) $(CACHE)/dockerfile-lint@$(BUILDKIT) ## golangci-lint, govulncheck, shellcheck, BuildKit's checks
	@golangci-lint run ./...
	@govulncheck ./... >$(CACHE)/govulncheck.log 2>&1 || { code=$$?; cat $(CACHE)/govulncheck.log >&2; \
	if [ $$code -eq 1 ] && grep -qE 'dial tcp|no such host|i/o timeout' $(CACHE)/govulncheck.log; then \
		echo 'govulncheck: its database cannot be reached from here: NOT CHECKED' >&2; else exit $$code; fi; }
	@git ls-files -z | xargs -0 grep -lE '^#!.*\<(ba)?sh\>' | xargs -r shellcheck
	@dockerfile-lint deploy/docker/Dockerfile

# Names come before the line of their package in the output of -list.
fuzz: ## every fuzz target for FUZZTIME (30s)
	@go test -list '^Fuzz' $(PKG) | awk '/^Fuzz/ { names[++n] = $$1 } /^ok/ { for (i = 1; i <= n; i++) print $$2, names[i]; n = 0 }' | \
	while read -r package name; do \
		echo "$$name in $$package"; \
		go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$package" || exit 1; \
	done

eval: ## how well storms are detected: 200 of them and a quiet month, as a Markdown table (10 minutes at most)
	@go test -tags eval -run '^TestEvaluation$$' -timeout 12m -v ./cmd/squall

bench: ## every benchmark; BENCH is a pattern
	@go test -run '^$$' -bench '$(BENCH)' -benchmem $(PKG)

bench-peers: debian-peers ## whole programs side by side on generated logs, as a Markdown table: squall, mawk, GoAccess, mtail, fail2ban
	@GOFLAGS=-pgo=auto go test -tags peers -run '^TestPeers$$' -timeout 40m -v ./cmd/squall

# SOAK_MINUTES (10) and SOAK_RATE (100000 lines a second) set how hard it is; SOAK_SQUALL is another squall to measure.
soak: $(CACHE)/victoria-logs@$(VICTORIA_LOGS) ## the daemon under load, as Markdown tables: a flood into a VictoriaLogs, an ordinary load, starts, growth (25 minutes)
	@GOFLAGS=-pgo=auto go test -tags soak -run '^TestSoak' -timeout 120m -v ./cmd/squall

pgo: $(CACHE)/victoria-logs@$(VICTORIA_LOGS) ## measure anew where squall spends its time, for the compiler: cmd/squall/default.pgo
	@mkdir -p $(CACHE)/pgo
	@PROFILES=$(CACHE)/pgo go test -tags soak,peers -run '^TestProfile$$' -timeout 20m ./cmd/squall
	@go tool pprof -proto -output $(CACHE)/pgo/merged $(CACHE)/pgo/replay.prof $(CACHE)/pgo/run.prof >$(CACHE)/pgo/log 2>&1 || \
		{ cat $(CACHE)/pgo/log >&2; exit 1; }
	@cp $(CACHE)/pgo/merged cmd/squall/default.pgo

readme: ## write the README's tables, deploy/reference and the schema anew from the code's
	@go test -run 'TestReadmeTables|TestReferenceIs|TestSchemaIs' ./cmd/squall -write-readme

dashboards: $(CACHE)/helm@$(HELM) ## write deploy/grafana's dashboards, and the chart's copies of them and of the rules, anew
	@go test -run Written ./deploy/grafana -write-dashboards
	@go test -run Written ./deploy/kubernetes -write-chart

fmt: $(CACHE)/golangci-lint@$(GOLANGCI_LINT) ## format the code
	@golangci-lint fmt ./...

clean: ## remove bin/ and .cache/
	@rm -rf bin $(CACHE)

help: ## this text
	@awk -F ':.*## ' '/^[a-z0-9 -]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

debian-test:
	@.ci/debian $(TEST_PACKAGES)

debian-lint:
	@.ci/debian $(LINT_PACKAGES)

debian-peers:
	@.ci/debian $(PEER_PACKAGES)

debian-packages:
	@.ci/debian $(PACKAGE_TOOLS)

# A tool is built once for each pinned version; the file with the version in its name says that it was.
define tool
$(CACHE)/$(1)@$(3):
	@echo "building $(1) $(3)"
	@mkdir -p $(BIN)
	@GOBIN=$(BIN) GOFLAGS= go install $(2)@$(3)
	@rm -f $(CACHE)/$(1)@*
	@touch $$@
endef
$(eval $(call tool,golangci-lint,github.com/golangci/golangci-lint/v2/cmd/golangci-lint,$(GOLANGCI_LINT)))
$(eval $(call tool,govulncheck,golang.org/x/vuln/cmd/govulncheck,$(GOVULNCHECK)))
$(eval $(call tool,nfpm,github.com/goreleaser/nfpm/v2/cmd/nfpm,$(NFPM)))
$(eval $(call tool,cyclonedx-gomod,github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod,$(CYCLONEDX)))
$(eval $(call tool,victoria-logs,github.com/VictoriaMetrics/VictoriaLogs/app/victoria-logs,$(VICTORIA_LOGS)))
$(eval $(call tool,helm,helm.sh/helm/v3/cmd/helm,$(HELM)))
$(eval $(call tool,nats-server,github.com/nats-io/nats-server/v2,$(NATS_SERVER)))
$(eval $(call tool,versitygw,github.com/versity/versitygw/cmd/versitygw,$(VERSITYGW)))

# BuildKit's linter of Dockerfiles is a part of a daemon: testdata/dockerfile calls it. Its version is in the go.mod there.
$(CACHE)/dockerfile-lint@$(BUILDKIT):
	@echo "building dockerfile-lint $(BUILDKIT)"
	@mkdir -p $(BIN)
	@cd testdata/dockerfile && grep -q 'buildkit $(BUILDKIT)$$' go.mod && CGO_ENABLED=0 GOFLAGS= go build -trimpath -o "$(BIN)/dockerfile-lint" .
	@rm -f $(CACHE)/dockerfile-lint@*
	@touch $@

# The API server is no module that can be installed by its name alone: testdata/kube/go.mod tells the versions of its
# parts. A first build takes a quarter of an hour of processor time.
$(CACHE)/kubernetes@$(KUBERNETES):
	@echo "building kube-apiserver $(KUBERNETES) and etcd"
	@mkdir -p $(BIN)
	@cd testdata/kube && for tool in etcd=go.etcd.io/etcd/server/v3 kube-apiserver=k8s.io/kubernetes/cmd/kube-apiserver; do \
		CGO_ENABLED=0 GOFLAGS= nice -n 10 go build -trimpath -ldflags '-s -w' -o "$(BIN)/$${tool%%=*}" "$${tool#*=}" || exit 1; \
	done
	@rm -f $(CACHE)/kubernetes@*
	@touch $@
