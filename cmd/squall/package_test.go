//go:build packages

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A machine is a Debian with a systemd of its own (testdata/package/machine.sh).
type machine struct {
	t   *testing.T
	pid string // of its process 1
}

func startMachine(t *testing.T, files ...string) *machine {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("a machine is made of namespaces: run make test-packages as root")
	}
	script, err := filepath.Abs("testdata/package/machine.sh")
	if err != nil {
		t.Fatal(err)
	}
	log := &output{}
	cmd := exec.Command("unshare", append([]string{"--mount", "--pid", "--fork", "--uts", "--ipc", "--net", "--cgroup", "--kill-child", script, t.TempDir()}, files...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // Pdeathsig is that of the thread
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the machine: %s", log)
		}
	})
	m := &machine{t: t}
	eventually(t, "the machine runs", func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid))
		if m.pid = strings.TrimSpace(string(text)); err != nil || m.pid == "" {
			return false
		}
		state, _ := m.try("systemctl is-system-running")
		return state == "running" || state == "degraded"
	})
	return m
}

// try runs a shell's line in the machine.
func (m *machine) try(line string) (out string, err error) {
	cmd := exec.Command("nsenter", "-t", m.pid, "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w", "sh", "-c", line)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive", "HOME=/root"}
	cmd.WaitDelay = time.Second // of what it leaves behind
	text, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(text)), err
}

// do is try for what must succeed.
func (m *machine) do(line string) string {
	m.t.Helper()
	out, err := m.try(line)
	if err != nil {
		status, _ := m.try("systemctl status squall; journalctl -u squall --no-pager | tail -40")
		m.t.Fatalf("%s: %v\n%s\n%s", line, err, out, status)
	}
	return out
}

// property is one of systemd's of the service.
func (m *machine) property(name string) string {
	m.t.Helper()
	return m.do("systemctl show --value -p " + name + " squall")
}

// lines is how many the service has read of nginx's log since it started.
func (m *machine) lines() int {
	text, err := m.try(`curl -sf http://127.0.0.1:9177/metrics | sed -n 's/^squall_source_lines_total{source="access"} //p'`)
	n, atoi := strconv.Atoi(text)
	if err != nil || atoi != nil {
		return -1
	}
	return n
}

// visit makes requests to nginx, each a line of its log.
func (m *machine) visit(n int) {
	m.t.Helper()
	m.do(fmt.Sprintf(`curl -s -o /dev/null "http://127.0.0.1:8080/[1-%d]"`, n))
}

// makePackage builds a package of a version by the Makefile.
func makePackage(t *testing.T, kind, version string) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("make", "-C", top, kind, "PACKAGE_VERSION="+version, "OUT="+dir)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make %s: %v\n%s", kind, err, text)
	}
	found, err := filepath.Glob(filepath.Join(dir, "*."+kind))
	if err != nil || len(found) != 1 {
		t.Fatalf("make %s gave %v, %v", kind, found, err)
	}
	return found[0]
}

const packagedNginx = `events {}
http {
  access_log /var/log/nginx/access.log;
  server { listen 127.0.0.1:8080; location / { return 200 "a page\n"; } }
}
`

const packagedConfig = `sources:
  - {name: access, type: file, paths: [/var/log/nginx/access.log], from: start}
  - {name: units, type: journal, units: [demo], format: auto, from: start}
spool: {dir: /var/lib/squall}
notify:
  - {type: stdout}
  - {type: webhook, url: "${credential:pager}"}
`

// TestPackageDeb installs the package, runs the service on a real nginx's log, upgrades it and purges it.
func TestPackageDeb(t *testing.T) {
	first, second := makePackage(t, "deb", "0.0.1"), makePackage(t, "deb", "0.0.2")
	m := startMachine(t, first, second)
	m.fresh(m.do("dpkg -i /root/" + filepath.Base(first)))
	m.do("cat >/root/nginx.conf <<'END'\n" + packagedNginx + "END")
	m.do("install -d -o root -g adm -m 0755 /var/log/nginx; install -o www-data -g adm -m 0640 /dev/null /var/log/nginx/access.log; nginx -c /root/nginx.conf >/dev/null 2>&1")
	m.do("cat >/etc/squall/squall.yaml <<'END'\n" + packagedConfig + "END")
	m.do("umask 077; echo http://127.0.0.1:9/a-secret >/etc/squall/credentials/pager")
	m.do("mkdir -p /etc/systemd/system/squall.service.d; printf '[Service]\\nWatchdogSec=3s\\nRestartSec=1s\\n' >/etc/systemd/system/squall.service.d/fast.conf; systemctl daemon-reload")
	m.do("systemctl enable --now squall") // Type=notify: it has said that it is ready
	m.visit(50)
	eventually(t, "nginx's log is read, as the group adm", func() bool { return m.lines() == 50 })
	m.confined()
	m.watched()
	m.upgraded("/root/" + filepath.Base(second))
	m.gone()
}

// fresh: what is installed does not run, belongs to whom it should, and says what to do.
func (m *machine) fresh(said string) {
	t := m.t
	t.Helper()
	if !strings.Contains(said, "squall init") || !strings.Contains(said, "systemctl enable --now squall") {
		t.Errorf("the installation does not say what to do next:\n%s", said)
	}
	for _, is := range []string{"is-active", "is-enabled"} {
		if out, err := m.try("systemctl " + is + " squall"); err == nil {
			t.Errorf("%s: %s: nobody asked for it", is, out)
		}
	}
	check(t, "the configuration's owner", m.do("stat -c '%U:%G %a' /etc/squall/squall.yaml"), "root:squall 640")
	check(t, "the secrets' owner", m.do("stat -c '%U:%G %a' /etc/squall/credentials"), "root:root 700")
	check(t, "conffiles", m.do("dpkg-query -W -f '${Conffiles}' squall | awk '{ print $1 }'"), "/etc/squall/squall.yaml")
	m.do("squall check --config /etc/squall/squall.yaml")
	if out := m.do("systemd-analyze verify /usr/lib/systemd/system/squall.service"); out != "" {
		t.Errorf("systemd-analyze verify: %s", out)
	}
	for _, page := range []string{"1 squall", "1 squall-run", "5 squall.yaml"} {
		if out := m.do("man --warnings -P cat " + page + " 2>&1 >/dev/null"); out != "" {
			t.Errorf("man %s: %s", page, out)
		}
	}
	m.do("bash -nc '. /usr/share/bash-completion/completions/squall'")
	m.do("test -s /usr/share/zsh/vendor-completions/_squall && test -s /usr/share/fish/vendor_completions.d/squall.fish")
}

// confined: it runs as its user, without a capability, with a filter of system calls; the secret was handed to it.
func (m *machine) confined() {
	t := m.t
	t.Helper()
	pid := m.property("MainPID")
	status := m.do("cat /proc/" + pid + "/status")
	for _, want := range []string{`CapBnd:\s+0{16}\n`, `CapEff:\s+0{16}\n`, `NoNewPrivs:\s+1\n`, `Seccomp:\s+2\n`} {
		if !regexp.MustCompile(want).MatchString(status) {
			t.Errorf("%s is not in\n%s", want, status)
		}
	}
	check(t, "whose it is", m.do("stat -c %U /proc/"+pid), "squall")
	if out := m.do("journalctl -u squall -o cat --no-pager"); strings.Contains(out, "a-secret") {
		t.Errorf("the log shows the secret: %s", out)
	}
	m.do("systemd-run --unit=demo --wait echo WARNING: '[pool www] server reached pm.max_children setting'")
	eventually(t, "the journal is read, as the group systemd-journal", func() bool {
		out, _ := m.try(`curl -sf http://127.0.0.1:9177/metrics | sed -n 's/^squall_source_lines_total{source="units"} //p'`)
		n, err := strconv.Atoi(out)
		return err == nil && n > 0
	})
	m.do("systemctl reload squall")
}

// watched: a squall that stands still is killed and started again; one that runs is not.
func (m *machine) watched() {
	t := m.t
	t.Helper()
	check(t, "restarts before", m.property("NRestarts"), "0")
	m.do("kill -STOP " + m.property("MainPID"))
	eventually(t, "the watchdog starts it again", func() bool {
		return m.property("NRestarts") == "1" && m.property("ActiveState") == "active" && m.lines() == 0
	})
}

// upgraded: the new version runs, with the configuration and the positions of the old one.
func (m *machine) upgraded(path string) {
	t := m.t
	t.Helper()
	before, config := m.property("MainPID"), m.do("sha256sum /etc/squall/squall.yaml")
	m.do("dpkg -i " + path)
	check(t, "the version", m.do("dpkg-query -W -f '${Version}' squall"), "0.0.2-1")
	check(t, "the configuration", m.do("sha256sum /etc/squall/squall.yaml"), config)
	if after := m.property("MainPID"); after == before || m.property("ActiveState") != "active" {
		t.Errorf("it was not restarted: process %s before and %s after, %s", before, after, m.property("ActiveState"))
	}
	m.visit(25)
	eventually(t, "what came since is read", func() bool { return m.lines() >= 25 })
	check(t, "lines read after the upgrade: those before it were read before it", m.lines(), 25)
	m.do("systemctl stop squall")
	m.do("dpkg -i " + path)
	if out, err := m.try("systemctl is-active squall"); err == nil {
		t.Errorf("an upgrade started what was stopped: %s", out)
	}
	m.do("systemctl start squall")
}

// gone: removed, it stops and keeps its state; purged, nothing of it is left.
func (m *machine) gone() {
	t := m.t
	t.Helper()
	m.do("dpkg -r squall")
	if out, err := m.try("systemctl is-active squall"); err == nil {
		t.Errorf("it runs on: %s", out)
	}
	m.do("test -s /etc/squall/squall.yaml && test -d /var/lib/squall/jetstream -o -n \"$(ls /var/lib/squall)\"")
	m.do("dpkg -P squall")
	left, _ := m.try("ls -d /var/lib/squall /etc/squall /usr/bin/squall /usr/share/squall /usr/share/doc/squall /etc/systemd/system/multi-user.target.wants/squall.service 2>/dev/null; getent passwd squall; getent group squall")
	check(t, "left behind", left, "")
}

// TestPackageRPM looks into the other package: its files, whose they are, and what it calls a configuration.
func TestPackageRPM(t *testing.T) {
	path := makePackage(t, "rpm", "0.0.1")
	query := func(args ...string) string {
		t.Helper()
		text, err := exec.Command("rpm", append([]string{"-qp"}, append(args, path)...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("rpm: %v: %s", err, text)
		}
		return string(text)
	}
	files := query("--queryformat", `[%{FILENAMES} %{FILEMODES:perms} %{FILEUSERNAME}:%{FILEGROUPNAME} %{FILEFLAGS:fflags}\n]`)
	for _, want := range []string{
		"/usr/bin/squall -rwxr-xr-x root:root ", "/usr/lib/systemd/system/squall.service -rw-r--r-- root:root ",
		"/etc/squall/squall.yaml -rw-r----- root:squall cn", "/etc/squall/credentials drwx------ root:root ",
		"/usr/share/man/man1/squall.1.gz", "/usr/share/man/man5/squall.yaml.5.gz", "/usr/share/zsh/site-functions/_squall",
		"/usr/share/bash-completion/completions/squall", "/usr/share/squall/squall.schema.json",
	} {
		if !strings.Contains(files, want) {
			t.Errorf("%q is not in the package:\n%s", want, files)
		}
	}
	if strings.Contains(files, "/var/lib/squall") {
		t.Error("the state belongs to the package: removing it would remove it")
	}
	if scripts := query("--scripts"); strings.Contains(scripts, "systemctl start") || !strings.Contains(scripts, "try-restart") {
		t.Errorf("scripts:\n%s", scripts)
	}
}
