package source

import (
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

// newContainer builds the kind container: the logs that a kubelet keeps on its node. They are files; only
// their paths tell more. What the container runtime wraps around each line is taken off by the road.
func newContainer(decode func(any) error, rt Runtime) (Source, error) {
	cfg := fileConfig{
		Common: defaultCommon(rt), Paths: []string{"/var/log/pods/*/*/*.log"},
		From: "start", Quiet: 5 * time.Second, MaxFiles: 8192,
	}
	if err := decode(&cfg); err != nil {
		return nil, err
	}
	return buildFiles(cfg, rt, placeContainer)
}

// placeContainer reads /var/log/pods/<namespace>_<pod>_<uid>/<container>/<restarts>.log and
// /var/log/containers/<pod>_<namespace>_<container>-<id>.log, and the names of files rotated from them
// (kubelet's pkg/kubelet/kuberuntime/helpers.go and legacy.go). Names of neither form tell nothing.
func placeContainer(path string, s *pipeline.Stream) {
	dir, file := filepath.Split(path)
	if r, rotated := parseRotated(file); rotated {
		file = r.stem
	}
	name, ok := strings.CutSuffix(file, ".log")
	if !ok {
		return
	}
	if parts := strings.Split(name, "_"); len(parts) == 3 {
		if i := strings.LastIndexByte(parts[2], '-'); i > 0 {
			s.Pod, s.Namespace, s.Container = parts[0], parts[1], parts[2][:i]
		}
		return
	}
	container := filepath.Base(dir)
	parts := strings.Split(filepath.Base(filepath.Dir(filepath.Clean(dir))), "_")
	restarts, err := strconv.Atoi(name)
	if err != nil || len(parts) != 3 {
		return
	}
	s.Namespace, s.Pod, s.Container, s.Restart = parts[0], parts[1], container, restarts
}
