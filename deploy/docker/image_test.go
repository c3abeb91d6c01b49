// Package docker holds the Dockerfile; its tests take the file's steps without a daemon that builds images.
package docker

import (
	"bytes"
	"errors"
	"fmt"
	"go/version"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// An instruction is one line of a Dockerfile, its continuations joined.
type instruction struct{ name, args string }

// readDockerfile gives the instructions of each stage.
func readDockerfile(t *testing.T) (stages [][]instruction) {
	t.Helper()
	text, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	joined := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") || line == "" && joined == "" {
			continue
		}
		if part, more := strings.CutSuffix(line, `\`); more {
			joined += part + " "
			continue
		}
		name, args, _ := strings.Cut(joined+line, " ")
		joined = ""
		if name == "FROM" {
			stages = append(stages, nil)
		}
		stages[len(stages)-1] = append(stages[len(stages)-1], instruction{name, strings.TrimSpace(args)})
	}
	return stages
}

// top is the checkout, which the first stage has as /src.
func top(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// flagless drops the flags before an instruction's arguments.
func flagless(args string) (flags, rest []string) {
	for _, word := range strings.Fields(args) {
		if strings.HasPrefix(word, "--") && len(rest) == 0 {
			flags = append(flags, word)
		} else {
			rest = append(rest, word)
		}
	}
	return flags, rest
}

// buildRoot takes the steps of the file: what would be the image's root.
func buildRoot(t *testing.T) string {
	t.Helper()
	stages := readDockerfile(t)
	if len(stages) != 2 || stages[1][0].args != "scratch" {
		t.Fatalf("%d stages: %v", len(stages), stages)
	}
	made, root := t.TempDir(), t.TempDir()
	for _, in := range stages[0] {
		if in.name != "RUN" {
			continue
		}
		_, words := flagless(in.args)
		script := strings.ReplaceAll(strings.Join(words, " "), "/image", made)
		cmd := exec.CommandContext(t.Context(), "sh", "-eu", "-c", script)
		cmd.Dir = top(t)
		cmd.Env = append(os.Environ(), "TARGETOS="+runtime.GOOS, "TARGETARCH="+runtime.GOARCH)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("RUN %s: %v\n%s", script, err, out)
		}
	}
	from := strings.NewReplacer("/src", top(t), "/image", made)
	for _, in := range stages[1] {
		if in.name != "COPY" {
			continue
		}
		flags, paths := flagless(in.args)
		if !slices.Contains(flags, "--from=build") || len(paths) != 2 {
			t.Fatalf("COPY %s", in.args)
		}
		copyInto(t, from.Replace(paths[0]), filepath.Join(root, paths[1]), slices.Contains(flags, "--chown=65532:65532"))
	}
	return root
}

// copyInto copies a file or a folder's content as COPY does.
func copyInto(t *testing.T, from, to string, owned bool) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(from)
	if err != nil {
		t.Fatal(err)
	}
	source := from
	if info.IsDir() {
		source += "/."
	}
	if out, err := exec.CommandContext(t.Context(), "cp", "-rL", "--preserve=mode", source, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if owned && os.Geteuid() == 0 {
		if err := os.Chown(to, 65532, 65532); err != nil {
			t.Fatal(err)
		}
	}
}

// inside gives a command that runs in the root as the image's user: without rights of root by a namespace of users.
func inside(t *testing.T, root string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Path, cmd.Err = args[0], nil // of the root
	cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65532, Gid: 65532}
		return cmd
	}
	cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
	cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
	cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	return cmd
}

// listing is all that lies in a root but the spool.
func listing(t *testing.T, root string) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err == nil && path == filepath.Join(root, "var/lib/squall") {
			return fs.SkipDir
		}
		paths = append(paths, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// TestImageRuns takes the file's steps, and runs what comes of them by its ENTRYPOINT and CMD: nothing is missing, and
// nothing is written outside of the spool.
func TestImageRuns(t *testing.T) {
	root := buildRoot(t)
	for dir := root; dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) { // the image's user must come in
		if err := os.Chmod(dir, 0o755); err != nil {
			break
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf("sources: [{type: file, paths: [/var/log/access.log], timezone: Europe/Berlin}]\nweb: {listen: %q}\n", address)
	if err := os.MkdirAll(filepath.Join(root, "etc/squall"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "etc/squall/squall.yaml"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	before := listing(t, root)

	cmd := inside(t, root, "/usr/bin/squall", "run", "--config", "/etc/squall/squall.yaml")
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	ready := false
	for deadline := time.Now().Add(time.Minute); !ready && time.Now().Before(deadline); {
		select {
		case err := <-ended:
			t.Fatalf("it ended: %v\n%s", err, &log)
		case <-time.After(50 * time.Millisecond):
		}
		if res, err := http.Get("http://" + address + "/-/ready"); err == nil {
			ready = res.StatusCode == http.StatusOK
			_ = res.Body.Close()
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil || !ready {
		t.Fatalf("ready: %v, %v\n%s", ready, err, &log)
	}
	if after := listing(t, root); !slices.Equal(before, after) {
		t.Errorf("it wrote outside of its spool: %d files, and %d before", len(after), len(before))
	}
	if _, err := os.Stat(filepath.Join(root, "var/lib/squall")); errors.Is(err, fs.ErrNotExist) {
		t.Error("there is no spool")
	}
}

// TestImageIsWhatTheChartRuns holds what the file says against what others rely on.
func TestImageIsWhatTheChartRuns(t *testing.T) {
	stages := readDockerfile(t)
	said := map[string]string{}
	for _, in := range stages[len(stages)-1] {
		said[in.name] = in.args
	}
	for name, want := range map[string]string{
		"ENTRYPOINT": `["/usr/bin/squall"]`, "CMD": `["run", "--config", "/etc/squall/squall.yaml"]`, "USER": "65532:65532", "EXPOSE": "9177",
	} {
		if said[name] != want {
			t.Errorf("%s %s, want %s", name, said[name], want)
		}
	}
	// It is built by a Go that go.mod allows.
	module, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(module), "\ngo ")
	least, _, _ := strings.Cut(rest, "\n")
	_, image, _ := strings.Cut(stages[0][0].args, "golang:")
	is, _, _ := strings.Cut(image, "-")
	if !version.IsValid("go"+is) || version.Compare("go"+is, "go"+least) < 0 {
		t.Errorf("the image is built with Go %s, and go.mod asks for %s", is, least)
	}
}
