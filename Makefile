# Proa builds with make, gcc and Go; everything it runs is built from pinned Go modules.
#
#   make build     bin/proa, and what a node carries: containerd, runc, CNI plugins, pause image
#   make images    container images for tests and examples: build/images/*.tar
#   make up        install what this machine lacks, build, start a cluster here, load the images
#   make down      stop that cluster and delete it
#   make test      vet and unit tests, then the end-to-end suites
#   make test-suites      suites of other projects (controller-runtime, fluxcd, Gateway API, Cluster API)
#   make bench-upstream   the API's speed beside upstream's server library
#   make dist      dist/proa: one file with everything inside
#   make features  what Proa implements, checked against the tree
#   make clean     remove what the others made, except a running cluster's data

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS   += --no-print-directory
.DEFAULT_GOAL := build
.DELETE_ON_ERROR:

GO         ?= go
GO_MINIMUM := 1.26
DATA_DIR   ?= /var/lib/proa
PAYLOAD    := build/payload
VERSION    := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT     := $(shell git rev-parse HEAD 2>/dev/null)
BUILD_DATE := $(shell date -u -d "@$$(git log -1 --format=%ct 2>/dev/null || echo 0)" +%Y-%m-%dT%H:%M:%SZ)
KUBE       := $(shell sed -n 's|^\tk8s.io/client-go v0|v1|p' go.mod)
KUBE_STAMP  = k8s.io/component-base/version
LDFLAGS     = -s -w -X $(KUBE_STAMP).gitVersion=$(KUBE) -X $(KUBE_STAMP).gitCommit=$(COMMIT) -X $(KUBE_STAMP).gitMajor=1 -X $(KUBE_STAMP).gitMinor=$(word 2,$(subst ., ,$(KUBE))) -X $(KUBE_STAMP).buildDate=$(BUILD_DATE) -X proa/internal/cli.Version=$(VERSION) -X proa/internal/controlplane.Commit=$(COMMIT) -X proa/internal/controlplane.BuildDate=$(BUILD_DATE)
STATIC     := -s -w -extldflags=-static

comma := ,
say = @printf '  %-8s %s\n' $(1) $(2)

# ---- the program ------------------------------------------------------------------------------

.PHONY: build proa
build: proa payload ## bin/proa and its payload
	@echo "built bin/proa; \`make up\` starts a cluster on this machine"

# Go knows better than make which sources changed, and takes no time when none did.
proa: | check-go
	$(call say,build,bin/proa)
	@mkdir -p bin
	@CGO_ENABLED=0 $(GO) build -trimpath -ldflags "$(LDFLAGS)" -o bin/proa ./cmd/proa

# ---- payload: the programs a node runs, pinned in tools/go.mod ------------------------------

module_version = $$(cd tools && $(GO) list -m -f '{{.Version}}' $(1))

CONTAINERD_TAGS := urfave_cli_no_docs,no_btrfs,no_devmapper,no_zfs,no_tracing,no_dynamic_plugins,osusergo,netgo,static_build
RUNC_TAGS       := seccomp,urfave_cli_no_docs,osusergo,netgo,static_build
CNI_PLUGINS     := bridge host-local loopback
CNI             := github.com/containernetworking/plugins
CONTAINERD      := github.com/containerd/containerd/v2
PAYLOAD_BINS    := $(addprefix $(PAYLOAD)/bin/,containerd containerd-shim-runc-v2 runc $(CNI_PLUGINS))

.PHONY: payload
payload: $(PAYLOAD_BINS) $(PAYLOAD)/images/pause.tar ## containerd, runc, CNI plugins and the pause image

$(PAYLOAD_BINS): tools/go.mod tools/go.sum | check-go
$(PAYLOAD)/bin/runc: | check-seccomp

$(PAYLOAD)/bin/containerd $(PAYLOAD)/bin/containerd-shim-runc-v2:
	$(call say,build,$@)
	@mkdir -p $(@D)
	@version=$(call module_version,$(CONTAINERD)); cd tools && CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false \
		-tags $(CONTAINERD_TAGS)$(if $(findstring shim,$@),$(comma)no_grpc) \
		-ldflags "-s -w -X $(CONTAINERD)/version.Version=$$version -X $(CONTAINERD)/version.Package=$(CONTAINERD)" \
		-o ../$@ $(CONTAINERD)/cmd/$(@F)

$(PAYLOAD)/bin/runc:
	$(call say,build,$@)
	@mkdir -p $(@D)
	@cd tools && CGO_ENABLED=1 $(GO) build -trimpath -buildvcs=false -tags $(RUNC_TAGS) \
		-ldflags "$(STATIC)" -o ../$@ github.com/opencontainers/runc

$(addprefix $(PAYLOAD)/bin/,$(CNI_PLUGINS)):
	$(call say,build,$@)
	@mkdir -p $(@D)
	@version=$(call module_version,$(CNI)); cd tools && CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false \
		-ldflags "-s -w -X $(CNI)/pkg/utils/buildversion.BuildVersion=$$version" \
		-o ../$@ $(CNI)/plugins/$(if $(filter host-local,$(@F)),ipam,main)/$(@F)

build/pause/pause: tools/pause/pause.c | check-gcc
	$(call say,build,$@)
	@mkdir -p $(@D)
	@gcc -Os -Wall -Wextra -static -nostdlib -ffreestanding -fno-stack-protector -fno-asynchronous-unwind-tables \
		-fno-pie -no-pie -Wl,--build-id=none -Wl,-z,noseparate-code -s -o $@ $<

$(PAYLOAD)/images/pause.tar: build/pause/pause tools/pause/image.json | build/proa-build
	$(call say,image,$@)
	@mkdir -p $(@D)
	@build/proa-build image $@ build/pause tools/pause/image.json

BUILDER_SOURCES := $(wildcard cmd/proa-build/*.go internal/images/pack/*.go internal/images/debian/*.go internal/payload/*.go)

build/proa-build: $(BUILDER_SOURCES) | check-go
	$(call say,build,$@)
	@mkdir -p $(@D)
	@$(GO) build -trimpath -o $@ ./cmd/proa-build

# ---- images: from Debian packages, or one static Go program each ------------------------------

DEBIAN_IMAGES := busybox nginx redis postgres
GO_IMAGES     := testserver guestbook-api
IMAGES        := $(patsubst %,build/images/%.tar,$(DEBIAN_IMAGES) $(GO_IMAGES))

.PHONY: images
images: $(IMAGES) ## container images in build/images
	@echo "images are in build/images; load them with: bin/proa image load build/images/*.tar"

define debian_image
build/images/$(1).tar: $$(shell find test/images/$(1) -type f) | build/proa-build check-debian
	$$(call say,image,$$@)
	@build/proa-build debian $$@ test/images/$(1)/image.json
endef
$(foreach name,$(DEBIAN_IMAGES),$(eval $(call debian_image,$(name))))

define go_image
build/images/$(1).tar: $$(wildcard $(2)/*.go $(2)/go.* $(2)/image.json) | build/proa-build check-go
	$$(call say,image,$$@)
	@mkdir -p build/images build/root/$(1)
	@cd $(2) && CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags "-s -w" -o $(CURDIR)/build/root/$(1)/$(3) .
	@build/proa-build image $$@ build/root/$(1) $(2)/image.json
endef
$(eval $(call go_image,testserver,test/images/testserver,testserver))
$(eval $(call go_image,guestbook-api,examples/guestbook/api,api))
$(eval $(call go_image,sample-apiserver,test/peers/sampleapiserver,sample-apiserver))

# ---- a cluster on this machine -----------------------------------------------------------------

.PHONY: up down deps
up: deps ## a cluster here, with the images loaded
	@$(MAKE) build images
	@bin/proa up --detach --data-dir $(DATA_DIR)
	@bin/proa image load --data-dir $(DATA_DIR) $(IMAGES)

down: ## stop the cluster and delete it
	@if [ -x bin/proa ]; then bin/proa down --delete --data-dir $(DATA_DIR); fi

# What building needs beyond make, curl and Go, on a Debian machine that lacks it.
DEPS := gcc:gcc libc6-dev:/usr/include/stdlib.h linux-libc-dev:/usr/include/linux/types.h \
	libseccomp-dev:/usr/include/seccomp.h pkg-config:pkg-config ca-certificates:/etc/ssl/certs/ca-certificates.crt

deps: check-go
	@missing=(); for dep in $(DEPS); do \
		command -v "$${dep#*:}" >/dev/null || [ -e "$${dep#*:}" ] || missing+=("$${dep%%:*}"); \
	done; \
	if [ $${#missing[@]} -eq 0 ]; then exit 0; fi; \
	printf '  %-8s %s\n' install "$${missing[*]}"; \
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$${missing[@]}" >/dev/null

# The checks are compiled as the program is: what one has built serves the others.
COMPILED := CGO_ENABLED=0

# ---- checks ------------------------------------------------------------------------------------

.PHONY: test vet unit e2e features test-suites
test: deps vet features unit e2e ## everything
	@if [ -s build/again.txt ]; then echo 'failed, and passed when they ran again; each is a fault to be found:'; cat build/again.txt; fi

vet: | check-go
	$(call say,vet,./...)
	@$(COMPILED) $(GO) vet -trimpath ./...
	@cd examples/guestbook/api && $(GO) vet ./...

unit: | check-go
	$(call say,test,./...)
	@rm -f build/again.txt
	@$(COMPILED) GO=$(GO) test/again.sh ./... -trimpath

# real runs the tests of a package against what was built: for so long at most, with so much before the command.
define real
$(call say,e2e,$(1))
@export PROA_E2E=required $(COMPILED) GO=$(GO); $(3) test/again.sh ./$(1) -trimpath -count=1 -timeout $(2)
endef

e2e: build images clients
	$(call real,internal/kubelet,5m,unshare -n sh -c 'ip link set lo up && exec "$$0" "$$@"')
	$(call real,test/e2e,30m)
	$(call real,test/node,10m)
	$(call real,test/datastore,10m)
	$(call real,test/identity,10m)
	$(call real,test/suites,20m,PROA_SUITES=controller-runtime-client$(comma)controller-runtime-envtest)

# SUITES=a,b runs some of them, RECORD=1 writes what they give to test/suites/results.yaml.
test-suites: proa ## suites of other projects against Proa in the place of envtest's binaries
	$(call say,test,test/suites)
	@PROA_SUITES=$(or $(SUITES),all) $(COMPILED) $(GO) test -trimpath -count=1 -timeout 180m -v ./test/suites $(if $(RECORD),-record)

features: | check-go
	@$(GO) run ./test/ledger

# ---- other people's servers beside Proa, each of a module of its own. Their first build takes
# minutes, so that `make test` skips what is not built, and has what upstream's storage library
# once wrote (internal/apiserver/registry/testdata) ------------------------------------------------

PEERS       := storage cloud-controller-manager descheduler
PEER_IMAGES := podsecurity

.PHONY: peers test-peers
peers: $(addprefix build/peers/,$(PEERS) $(PEER_IMAGES:=.tar) prometheus) ## servers of others: managers, webhooks, monitoring, upstream's storage library

# peer says which package of test/peers/MODULE a program is.
define peer
build/peers/$(1): $$(wildcard test/peers/$(2)/*.go test/peers/$(2)/*/*.go) test/peers/$(2)/go.mod test/peers/$(2)/go.sum | check-go
	$$(call say,build,$$@)
	@mkdir -p $$(@D)
	@cd test/peers/$(2) && CGO_ENABLED=0 $$(GO) build -trimpath -o $$(CURDIR)/$$@ $(3)
endef
$(eval $(call peer,storage,upstream,./storage))
$(eval $(call peer,cloud-controller-manager,cloudmanager,.))
$(eval $(call peer,descheduler,descheduler,sigs.k8s.io/descheduler/cmd/descheduler))

# peer_image makes an image of one, as FILE, for manifests that run it as a pod.
define peer_image
build/peers/$(1).tar: test/peers/$(2)/go.mod test/peers/$(2)/go.sum $(5) | check-go build/proa-build
	$$(call say,image,$$@)
	@mkdir -p $$(@D) build/root/$(1)
	@cd test/peers/$(2) && CGO_ENABLED=0 $$(GO) build -trimpath -ldflags "-s -w" -o $$(CURDIR)/build/root/$(1)/$(4) $(3)
	@build/proa-build image $$@ build/root/$(1) $(5)
endef
$(eval $(call peer_image,podsecurity,podsecurity,k8s.io/pod-security-admission/cmd/webhook,webhook,test/peers/podsecurity/image.json))

# Debian's, unpacked but not installed.
build/peers/prometheus: | check-debian
	$(call say,unpack,$@)
	@mkdir -p build/peers/deb
	@cd build/peers/deb && rm -f prometheus_*.deb && apt-get download -qq prometheus && \
		dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x -C .. --strip-components=3 ./usr/bin/prometheus && touch ../prometheus

test-peers: proa payload build/images/busybox.tar peers ## those servers against Proa
	$(call say,test,test/datastore)
	@PROA_E2E=required PROA_PEERS=required $(GO) test -count=1 -timeout 10m -run Upstream ./test/datastore
	$(call say,test,internal/cli/byname)
	@PROA_PEERS=required $(COMPILED) $(GO) test -trimpath -count=1 -timeout 10m -run Cloud ./internal/cli/byname
	$(call say,test,test/peers)
	@PROA_PEERS=required $(COMPILED) $(GO) test -trimpath -count=1 -timeout 20m ./test/peers

# ---- other people's programs that the end-to-end tests run against Proa ---------------------------------

.PHONY: clients
clients: build/images/sample-apiserver.tar build/clients/helm3 build/clients/helm4 build/clients/javascript ## Helm, the JavaScript client, an extension server

build/clients/helm3 build/clients/helm4: build/clients/helm%: test/clients/helm/go.mod test/clients/helm/go.sum | check-go
	$(call say,build,$@)
	@mkdir -p $(@D)
	@cd test/clients/helm && CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w" -o $(CURDIR)/$@ helm.sh/helm/v$*/cmd/helm

# Without Node.js there is nothing to run it with: the test says so.
build/clients/javascript: $(wildcard test/clients/javascript/*)
	@command -v npm >/dev/null || { echo "the JavaScript client is not tested: no npm (apt-get install nodejs npm)"; exit 0; }; \
	printf '  %-8s %s\n' install $@; mkdir -p $@ && cp $^ $@ && cd $@ && npm ci --silent --no-audit --no-fund && touch .

# ---- measured beside upstream (test/peers/upstream is a module of its own) ---------------------------

.PHONY: bench-upstream
bench-upstream: proa ## proa bench api against Proa and against upstream's library on etcd
	$(call say,build,build/bench)
	@mkdir -p build/bench
	@cd test/peers/upstream && $(GO) generate . && $(GO) build -trimpath -o ../../../build/bench/upstream . && $(GO) build -trimpath -o ../../../build/bench/etcd go.etcd.io/etcd/server/v3
	@test/peers/upstream/compare.sh $(BENCH)

# ---- one file ----------------------------------------------------------------------------------

.PHONY: dist
dist: payload build/proa-build ## dist/proa with the payload inside
	$(call say,pack,internal/payload/payload.tar.zst)
	@build/proa-build payload internal/payload/payload.tar.zst $(PAYLOAD)
	$(call say,build,dist/proa)
	@mkdir -p dist
	@CGO_ENABLED=0 $(GO) build -trimpath -tags dist -ldflags "$(LDFLAGS)" -o dist/proa ./cmd/proa
	@ls -lh dist/proa | awk '{print "dist/proa: " $$5}'

.PHONY: clean
clean:
	@rm -rf bin build dist internal/payload/payload.tar.zst

# ---- what building needs, said before it fails --------------------------------------------------

.PHONY: check-go check-gcc check-seccomp check-debian
check-go:
	@command -v $(GO) >/dev/null || { echo "proa needs Go $(GO_MINIMUM) or newer: https://go.dev/dl" >&2; exit 1; }
	@have=$$($(GO) env GOVERSION); have=$${have#go}; have=$${have%% *}; \
	printf '%s\n%s\n' $(GO_MINIMUM) "$$have" | sort -CV || \
		{ echo "proa needs Go $(GO_MINIMUM) or newer, found $$have: https://go.dev/dl" >&2; exit 1; }

check-gcc:
	@command -v gcc >/dev/null || { echo "the pause image needs gcc: make deps" >&2; exit 1; }

check-seccomp: check-gcc
	@[ -e /usr/include/seccomp.h ] || { echo "runc needs libseccomp: make deps, or apt-get install libseccomp-dev" >&2; exit 1; }

check-debian:
	@[ "$$(id -u)" = 0 ] && command -v apt-get dpkg-deb >/dev/null || \
		{ echo "images are built as root on Debian, with apt-get and dpkg-deb" >&2; exit 1; }
