package main

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// runCommand runs one of squall's commands and gives what it writes to standard output and to standard error.
func runCommand(args ...string) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	root := newRootCommand()
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(&errs)
	err = root.Execute()
	return out.String(), errs.String(), err
}

// surveyedMachine makes the files of a machine.
func surveyedMachine(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		write(t, path, text)
	}
	return root
}

const combinedLine = `192.0.2.1 - - [30/Nov/2026:10:00:00 +0000] "GET /a HTTP/1.1" 200 5 "-" "curl/8"` + "\n"

// TestInitOfAMachine holds what is found in the files of a machine, and that it is a configuration.
func TestInitOfAMachine(t *testing.T) {
	root := surveyedMachine(t, map[string]string{
		"etc/nginx/nginx.conf": `events {}
http { # a comment with ; and { in it
  log_format timed '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent '
                   '"$http_referer" "$http_user_agent" rt=$request_time it''s';
  include /etc/nginx/sites/*.conf;
  error_log /var/log/nginx/error.log warn;
}`,
		"etc/nginx/sites/a.conf":             "server { server_name shop.example www.shop.example; access_log /var/log/nginx/shop.log timed; }",
		"etc/nginx/sites/b.conf":             "server { server_name ~^re\\d; access_log /var/log/nginx/$host-access.log; access_log syslog:server=127.0.0.1; }\nserver { server_name _; access_log off; }",
		"var/log/nginx/b.example-access.log": strings.Repeat(combinedLine, 5),
		"var/log/haproxy.log":                "nonsense\x1b[31m of a machine\n",
		"var/log/pods/web_ingress-nginx-controller-7f_1a/controller/0.log": "2026-11-30T10:00:00Z stdout F " + combinedLine,
		"var/log/pods/shop_php-7f_1a/php/0.log":                            "2026-11-30T10:00:00Z stdout F hello\n",
		"etc/php/8.2/fpm/pool.d/www.conf":                                  "[www]\n;pm.max_children = 1\npm.max_children = 25\n",
	})
	file := filepath.Join(t.TempDir(), "etc", "squall.yaml")
	_, told, err := runCommand("init", "--root", root, "--output", file, "--loki", "http://loki.example:3100")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"paths: ['/var/log/nginx/shop.log']", "rt=$request_time it", "site: 'shop.example'", "paths: ['/var/log/nginx/*-access.log']",
		"format: nginx_combined", "format: nginx_error", "hosts: ['shop.example', 'www.shop.example']", "looks like nginx", "No such file yet",
		"paths: ['/var/log/pods/*ingress-nginx*/*/*.log']", "paths: ['/var/log/haproxy.log']", "workers: 25", "pm.max_children = 25",
		"url: 'http://loki.example:3100'", "syslog:server=127.0.0.1, which is no file here",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s is not in the configuration:\n%s", want, text)
		}
	}
	if bytes.ContainsRune(text, '\x1b') || strings.Contains(string(text), "~^re") {
		t.Errorf("what a log or a pattern holds is taken as it is:\n%s", text)
	}
	if !strings.Contains(told, "not found out: ") || !strings.Contains(told, "squall doctor --config "+file) {
		t.Errorf("told: %s", told)
	}
	if _, err := runCheck("--config", file); err != nil {
		t.Errorf("it does not pass squall check: %v\n%s", err, text)
	}
	if err := validateBySchema(t, text); err != nil {
		t.Errorf("editors complain of it: %v", err)
	}
	initKeepsWhatIsThere(t, root, file)
}

// initKeepsWhatIsThere: a file that somebody wrote is overwritten by --force alone, and keeps its rights.
func initKeepsWhatIsThere(t *testing.T, root, file string) {
	t.Helper()
	write(t, file, "sources: []\n")
	if err := os.Chmod(file, 0o604); err != nil {
		t.Fatal(err)
	}
	if _, _, err := runCommand("init", "--root", root, "--output", file); exitCode(err) != exitUsage {
		t.Errorf("a file that is there: %v", err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "sources: []\n" {
		t.Errorf("it was changed: %s, %v", text, err)
	}
	if _, _, err := runCommand("init", "--root", root, "--output", file, "--force"); err != nil {
		t.Error(err)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o604 || info.Size() < 100 {
		t.Errorf("after --force: %v, %v", info, err)
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(file), ".squall-init-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestInitCountsNoRequestTwice holds that of the logs that have the same requests one is read, and that what a glob
// matches is not read as another source too.
func TestInitCountsNoRequestTwice(t *testing.T) {
	howTo, err := os.ReadFile("../../deploy/nginx/squall.conf")
	if err != nil {
		t.Fatal(err)
	}
	cri := "2026-11-30T10:00:00Z stdout F " + combinedLine
	root := surveyedMachine(t, map[string]string{
		"etc/nginx/nginx.conf": `events {}
http {
  access_log /var/log/nginx/access.log;
  error_log /var/log/nginx/error.log;
  include conf.d/*.conf;
  server { # redirects for all
    server_name B.example a.example. www.a.example c.example; access_log /var/log/nginx/$host.log; return 301 https://$host/; }
  server { server_name a.example www.a.example;
    location / { content_by_lua_block { ngx.say("it's } not {") } } }
  server { server_name b.example; access_log /var/log/nginx/b.log combined buffer=32k flush=1m; access_log /var/log/nginx/packed.gz combined gzip; }
  server { server_name c.example; access_log /var/log/nginx/even.log combined if=$even; access_log /var/log/nginx/odd.log combined if=$odd; }
}
stream { log_format squall '$remote_addr $protocol $bytes_sent'; access_log /var/log/nginx/stream.log squall; server { listen 53; } }`,
		"etc/nginx/conf.d/squall.conf":                      string(howTo),
		"var/log/nginx/error.log":                           "",
		"var/log/nginx/b.log":                               combinedLine,
		"var/log/nginx/other.log":                           combinedLine,
		"var/log/pods/projectcontour_envoy-x_1/envoy/0.log": cri,
		"var/log/pods/ingress-nginx_nginx-ingress-controller-1_1/controller/0.log": cri,
		"etc/php/8.2/fpm/pool.d/two.conf":                                          "[a]\npm.max_children = 5\n[b]\npm.max_children = 50\n",
	})
	if err := os.Mkdir(filepath.Join(root, "var/log/nginx/folder.log"), 0o750); err != nil {
		t.Fatal(err)
	}
	text, told, err := runCommand("init", "--root", root, "--output", "-")
	if err != nil {
		t.Fatal(err)
	}
	c, faults, err := parseConfig("init.yaml", []byte(text), nil)
	if err != nil || len(faults) > 0 {
		t.Fatal(err, faults)
	}
	var read []string
	for i := range c.Sources {
		s := c.Sources[i].Kind.node
		read = append(read, strings.Join(append(s.get("paths").texts(), s.get("exclude").texts()...), " "))
	}
	check(t, "what is read", strings.Join(read, "\n"), strings.Join([]string{
		"/var/log/nginx/*.log /var/log/nginx/b.log /var/log/nginx/even.log /var/log/nginx/odd.log /var/log/nginx/squall.log /var/log/nginx/error.log",
		"/var/log/nginx/b.log", "/var/log/nginx/even.log", "/var/log/nginx/odd.log", "/var/log/nginx/squall.log", "/var/log/nginx/error.log",
		"/var/log/pods/*ingress-nginx*/*/*.log /var/log/pods/*nginx-ingress*/*/*.log /var/log/pods/*envoy*/*/*.log /var/log/pods/*contour*/*/*.log",
	}, "\n"))
	for _, want := range []string{
		"access.log is left out: each of its requests is in /var/log/nginx/squall.log", "lateness: 1m5s", "nginx packs /var/log/nginx/packed.gz",
		"{name: 'b.example', hosts: ['b.example']}", "{name: 'a.example', hosts: ['a.example', 'www.a.example']}", "{name: 'c.example', hosts: ['c.example']}",
		"workers: 0,", "max_children = 50", "host=\"$host\"",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not in\n%s\n%s", want, text, told)
		}
	}
	for _, w := range c.sourceWarnings() {
		if strings.Contains(w, "no name") {
			t.Errorf("squall warns of its own configuration: %s", w)
		}
	}
}

// TestInitOpensNoPipe holds that a log that is a pipe keeps nobody waiting for its writer: neither init nor doctor.
func TestInitOpensNoPipe(t *testing.T) {
	root := surveyedMachine(t, map[string]string{"var/log/nginx/other-access.log": combinedLine})
	pipe := filepath.Join(root, "var/log/nginx/access.log")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	text, _, err := runCommand("init", "--root", root, "--output", "-")
	if err != nil || !strings.Contains(text, "/var/log/nginx/access.log is no file") || !strings.Contains(text, "other-access.log: looks like nginx") {
		t.Errorf("%v\n%s", err, text)
	}
	found, _ := doctored(t, "sources: [{name: a, type: file, paths: ["+pipe+"]}]")
	if d := about(found, "source a"); d.Status != sick || !strings.Contains(d.Found, "no file") || d.Do == "" {
		t.Errorf("%+v", d)
	}
}

// TestInitOfNothing holds that a machine without logs gets a configuration that loads, and says what to do.
func TestInitOfNothing(t *testing.T) {
	text, _, err := runCommand("init", "--root", t.TempDir(), "--output", "-")
	if err != nil || !strings.Contains(text, "No log was found") || !strings.Contains(text, "No Alertmanager was found") {
		t.Errorf("%v\n%s", err, text)
	}
}

// TestInitAsksTheRealNginx holds that nginx's own words are read: those of nginx -T.
func TestInitAsksTheRealNginx(t *testing.T) {
	dir := t.TempDir()
	conf := filepath.Join(dir, "nginx.conf")
	write(t, filepath.Join(dir, "site.inc"), "server { listen unix:"+dir+"/s; server_name real.example; access_log "+dir+"/real.log timed; }")
	write(t, conf, "pid "+dir+"/pid;\nerror_log "+dir+"/error.log;\nevents {}\nhttp {\n log_format timed escape=json '{\"status\":\"$status\",\"request\":\"$request\",\"request_time\":\"$request_time\",\"time_local\":\"$time_local\"}';\n include "+dir+"/*.inc;\n}\n")
	if out, err := exec.CommandContext(t.Context(), command(t, "nginx"), "-t", "-c", conf).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text, _, err := runCommand("init", "--nginx-conf", conf, "--output", "-")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"paths: ['" + dir + "/real.log']", "format: {type: nginx, log_format: '{\"status\":", "name: 'real.example'"} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not in\n%s", want, text)
		}
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() && !strings.Contains(text, ip.IP.String()) {
			t.Errorf("the address %s is not told", ip.IP)
		}
	}
}

// FuzzNginxConfiguration: no configuration makes the reader fail, and what it finds makes a comment or a value.
func FuzzNginxConfiguration(f *testing.F) {
	f.Add("http { log_format a '$x'; server { server_name a.b; access_log /l a; } }")
	f.Add("a \"b\\\" ${c} {;}}} # d\naccess_log /x$y_${z}.log;")
	f.Fuzz(func(t *testing.T, text string) {
		found := readNginx(text, func(string) []string { return []string{text} }) // it includes itself
		for _, l := range found.logs {
			if strings.Contains(l.glob(), "$") {
				t.Errorf("%q keeps a variable", l.glob())
			}
		}
		for _, hosts := range found.servers {
			for _, h := range hosts {
				c, faults, err := parseConfig("f.yaml", []byte("sites: [{name: "+yamlQuoted(h)+"}]"), nil)
				if strings.ContainsAny(h, "\r\n\x00") || !bytes.Equal([]byte(h), bytes.ToValidUTF8([]byte(h), nil)) {
					continue
				}
				if err != nil || len(faults) > 0 || len(c.Sites) != 1 {
					t.Errorf("host %q: %v %v", h, err, faults)
				}
			}
		}
	})
}
