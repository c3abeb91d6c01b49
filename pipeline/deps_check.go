//go:build depcheck

package pipeline

import (
	_ "github.com/DataDog/sketches-go/ddsketch"
	_ "github.com/axiomhq/hyperloglog"
	_ "github.com/cespare/xxhash/v2"
	_ "github.com/coreos/go-systemd/v22/daemon"
	_ "github.com/expr-lang/expr"
	_ "github.com/gaissmai/bart"
	_ "github.com/goccy/go-yaml"
	_ "github.com/golang/snappy"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/grafana/loki-client-go/loki"
	_ "github.com/grafana/loki/pkg/push"
	_ "github.com/klauspost/compress/zstd"
	_ "github.com/nats-io/nats-server/v2/server"
	_ "github.com/nats-io/nats.go/jetstream"
	_ "github.com/nxadm/tail"
	_ "github.com/oklog/run"
	_ "github.com/prometheus/alertmanager/api/v2/client"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "github.com/prometheus/common/version"
	_ "github.com/prometheus/exporter-toolkit/web"
	_ "github.com/rogpeppe/go-internal/testscript"
	_ "github.com/spf13/cobra"
	_ "go.uber.org/goleak"
	_ "go.uber.org/zap"
	_ "golang.org/x/sys/unix"
	_ "golang.org/x/time/rate"
	_ "pgregory.net/rapid"
)
