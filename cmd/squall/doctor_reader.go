package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"syscall"
)

// A reader asks whether the service's user may read a file: root may read all, and would find no fault.
type reader struct {
	ctx     context.Context
	service bool // the user is the service's, and somebody else than who asks
	all     bool // the service may read everything
	ports   bool // it may listen on every port
	name    string
	as      *syscall.Credential
}

// serviceGroups are those of deploy/systemd/squall.service.
var serviceGroups = []string{"adm", "systemd-journal"}

// newReader is the service's user where root asks and there is such a user; else whoever asks.
func newReader(ctx context.Context, name string) *reader {
	r := &reader{ctx: ctx}
	u, err := user.Lookup(name)
	if os.Getuid() != 0 || err != nil {
		return r
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if errors.Join(err1, err2) != nil {
		return r
	}
	as := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	ids, _ := u.GroupIds() // those that it has beside the unit's
	for _, g := range serviceGroups {
		if group, err := user.LookupGroup(g); err == nil {
			ids = append(ids, group.Gid)
		}
	}
	for _, id := range ids {
		if n, err := strconv.ParseUint(id, 10, 32); err == nil {
			as.Groups = append(as.Groups, uint32(n))
		}
	}
	out, err := exec.CommandContext(ctx, "systemctl", "show", "--value", "-p", "AmbientCapabilities", "squall.service").Output()
	r.all = err == nil && strings.Contains(string(out), "cap_dac_read_search")
	r.ports = err == nil && strings.Contains(string(out), "cap_net_bind_service")
	r.service, r.name, r.as = true, name, as
	return r
}

// may asks the system, as the user: permissions have more to them than bits.
func (r *reader) may(what, path string) error {
	cmd := exec.CommandContext(r.ctx, "test", what, path)
	if r.service {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: r.as}
	}
	return cmd.Run()
}

func (r *reader) mayRead(path string) error {
	if !r.service {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		return f.Close()
	}
	if !r.all && r.may("-r", path) != nil {
		return fmt.Errorf("%s: the user %s may not read it", path, r.name)
	}
	return nil
}

// mayListen is nil where the service may listen on a port; whether another does is not asked.
func (r *reader) mayListen(address string) error {
	_, port, err := net.SplitHostPort(address)
	n, atoi := strconv.Atoi(port)
	if err != nil || atoi != nil || n == 0 || !r.service || r.ports {
		return nil // to listen there is tried by whoever asks
	}
	first := 1024 // of the ports that are everybody's
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start"); err == nil {
		if set, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			first = set
		}
	}
	if n < first {
		return fmt.Errorf("%s: the user %s may not listen on ports below %d", address, r.name, first)
	}
	return nil
}

func (r *reader) mayWrite(dir string) error {
	if r.may("-w", dir) != nil {
		who := "this user"
		if r.service {
			who = "the user " + r.name
		}
		return fmt.Errorf("%s: %s may not write there", dir, who)
	}
	return nil
}
