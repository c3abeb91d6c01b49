package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A survey is what a machine shows of its logs.
type survey struct {
	sources  []surveyedSource
	sites    [][]string // hosts of each
	workers  int        // of the one php-fpm pool; 0: none, or several
	pools    []string   // what is known of pools, for people
	own      []string   // addresses of this machine
	loki     string     // address; "": none was found
	alerts   string     // Alertmanager's
	missing  []string   // what could not be found out, and what to do
	nginxLog bool       // nginx's access log is among the sources
}

// A surveyedSource is one entry of sources, with what is to be told of it.
type surveyedSource struct {
	about  []string // lines of comment
	fields []string // of the mapping, without its type
	kind   string
}

// A surveyor looks at a machine. It writes nothing and asks only the machine itself.
type surveyor struct {
	root      string // "/", or where another machine's files are: then nothing is run and nobody is asked
	nginxConf string // "": where nginx has it
	now       time.Time
	survey    survey
	told      map[string]bool // paths that a source reads already
}

// commandTime bounds a program that is asked.
const commandTime = 10 * time.Second

func (s *surveyor) live() bool { return filepath.Clean(s.root) == "/" }

// look does the whole survey.
func (s *surveyor) look(ctx context.Context) survey {
	s.told = map[string]bool{}
	s.nginx(ctx)
	s.knownLogs()
	s.pods()
	s.journal(ctx)
	s.phpPools()
	s.addresses()
	s.neighbours(ctx)
	return s.survey
}

func (s *surveyor) miss(format string, args ...any) {
	s.survey.missing = append(s.survey.missing, fmt.Sprintf(format, args...))
}

// ask runs a program of the machine and gives what it prints.
func (s *surveyor) ask(ctx context.Context, name string, args ...string) (string, error) {
	for _, dir := range []string{"", "/usr/sbin/", "/usr/local/sbin/"} {
		if path, err := exec.LookPath(dir + name); err == nil {
			ctx, cancel := context.WithTimeout(ctx, commandTime)
			defer cancel()
			out, err := exec.CommandContext(ctx, path, args...).Output()
			return string(out), err
		}
	}
	return "", exec.ErrNotFound
}

// nginx reads the configuration as nginx itself prints it; where that is not to be had, from its files.
func (s *surveyor) nginx(ctx context.Context) {
	conf := s.nginxConf
	if conf == "" {
		conf = "/etc/nginx/nginx.conf"
	}
	var text string
	if s.live() {
		args := []string{"-T"}
		if s.nginxConf != "" {
			args = append(args, "-c", s.nginxConf)
		}
		if out, err := s.ask(ctx, "nginx", args...); err == nil {
			text = out
		}
	}
	if text == "" {
		var err error
		if text, err = nginxFiles(s.root, conf); err != nil {
			if !os.IsNotExist(err) {
				s.miss("nginx's configuration cannot be read (%v): run this as root", err)
			}
			return
		}
	}
	found := readNginx(text)
	for _, log := range found.logs {
		s.nginxLog(log, found.formats)
	}
	for _, odd := range found.odd {
		s.miss("nginx writes an access log to %s, which is no file here: see the sources syslog and container", odd)
	}
	for _, path := range found.errors {
		s.add("file", path, nil, []string{"format: nginx_error"})
	}
	for _, hosts := range found.servers {
		if !slices.ContainsFunc(s.survey.sites, func(other []string) bool {
			return slices.ContainsFunc(hosts, func(h string) bool { return slices.Contains(other, h) })
		}) {
			s.survey.sites = append(s.survey.sites, hosts)
		}
	}
}

// nginxLog adds an access log with the format that the configuration gives it.
func (s *surveyor) nginxLog(log nginxLog, formats map[string]string) {
	var about, fields []string
	switch text := formats[log.format]; {
	case log.format == "combined" || text == "":
		fields = append(fields, "format: nginx_combined")
		about = append(about, "nginx's combined format tells no times and no host: squall sees storms and clients that give up, and",
			"neither slow answers nor busy workers. A log_format that tells all: see \"The nginx log that tells squall most\"",
			"in the README.")
	default:
		set := formatSettings{LogFormat: text}
		choice, err := chooseFormat("nginx", func(v any) error { *v.(*formatSettings) = set; return nil })
		if err != nil {
			about = append(about, fmt.Sprintf("log_format %s cannot be read as it is written (%v): auto tries.", log.format, err))
			break
		}
		fields = append(fields, fmt.Sprintf("format: {type: nginx, log_format: %s}", yamlQuoted(text)))
		for _, lack := range choice.lacks() {
			about = append(about, "log_format "+log.format+": "+lack)
		}
	}
	if len(log.hosts) > 0 && !strings.Contains(formats[log.format], "host") && !strings.Contains(formats[log.format], "server_name") {
		fields = append(fields, "site: "+yamlQuoted(log.hosts[0]))
	}
	if s.add("file", log.glob(), about, fields) {
		s.survey.nginxLog = true
	}
}

// knownLogs are where other servers write, in the order in which they are looked for.
var knownLogs = []string{
	"/var/log/nginx/*access*.log", "/var/log/haproxy.log", "/var/log/haproxy/*.log", "/var/log/apache2/*access*.log", "/var/log/httpd/*access*log",
	"/var/log/caddy/*.log", "/var/log/traefik/*access*.log", "/var/log/envoy/*access*.log", "/var/log/php*-fpm.log", "/var/log/php-fpm/*.log",
}

func (s *surveyor) knownLogs() {
	for _, glob := range knownLogs {
		if glob == knownLogs[0] && s.survey.nginxLog {
			continue
		}
		if len(s.files(glob)) > 0 {
			s.add("file", glob, nil, nil)
		}
	}
}

// files are what a glob finds in the machine, without what was rotated.
func (s *surveyor) files(glob string) (paths []string) {
	found, err := filepath.Glob(filepath.Join(s.root, glob))
	if err != nil {
		return nil
	}
	return found
}

// mostSampled is how many files of a glob are read.
const mostSampled = 5

// add notes a source of files, with what its files show. It tells whether it is new.
func (s *surveyor) add(kind, glob string, about, fields []string) bool {
	if s.told[glob] {
		return false
	}
	s.told[glob] = true
	found := s.files(glob)
	src := surveyedSource{kind: kind, fields: append([]string{"paths: [" + yamlQuoted(glob) + "]"}, fields...)}
	switch len(found) {
	case 0:
		src.about = append(src.about, "No such file yet: squall waits for it.")
	case 1:
	default:
		src.about = append(src.about, fmt.Sprintf("%d files.", len(found)))
	}
	framing := framings[kind]
	for _, path := range found[:min(len(found), mostSampled)] {
		auto, err := chooseFormat("auto", func(any) error { return nil })
		if err != nil {
			continue
		}
		got, err := sampleLog(path, opener{format: auto, zone: time.UTC, framing: framing})
		shown := "/" + strings.TrimPrefix(strings.TrimPrefix(path, filepath.Clean(s.root)), "/")
		if err != nil {
			s.miss("%s cannot be read (%v): squall's user must be allowed to, see the unit's head", shown, err)
			continue
		}
		src.about = append(src.about, shown+": "+got.words(s.now))
	}
	src.about = append(src.about, about...)
	s.survey.sources = append(s.survey.sources, src)
	return true
}

// words tells of a sample in one line.
func (s logSample) words(now time.Time) string {
	if s.lines == 0 {
		return "empty."
	}
	var parts []string
	switch {
	case s.format != "":
		parts = append(parts, "looks like "+s.format)
	case s.nearest != "":
		parts = append(parts, s.nearest)
	}
	if s.requests > 0 && s.times == 0 {
		parts = append(parts, "no times in it")
	}
	if s.requests > 0 && s.hosts == 0 {
		parts = append(parts, "no host in it")
	}
	if s.requests == 0 && s.events == 0 {
		parts = append(parts, "no request in its last lines")
	}
	if !s.newest.IsZero() {
		if age := now.Sub(s.newest).Round(time.Second); age > time.Hour {
			parts = append(parts, "the last line is of "+s.newest.UTC().Format("2006-01-02 15:04"))
		}
	}
	return strings.Join(parts, "; ") + "."
}

// ingresses are what a pod of an ingress controller is called.
var ingresses = []string{"ingress-nginx", "nginx-ingress", "traefik", "haproxy-ingress", "kubernetes-ingress", "envoy", "istio-ingressgateway", "contour"}

// pods looks for the logs of ingress controllers among those of a Kubernetes node.
func (s *surveyor) pods() {
	all := s.files("/var/log/pods/*/*/*.log")
	if len(all) == 0 {
		if len(s.files("/var/log/pods")) > 0 {
			s.miss("/var/log/pods has no logs that may be read: squall needs CAP_DAC_READ_SEARCH there, see the unit's head")
		}
		return
	}
	any := false
	for _, name := range ingresses {
		if glob := "/var/log/pods/*" + name + "*/*/*.log"; len(s.files(glob)) > 0 {
			any = s.add("container", glob, nil, nil) || any
		}
	}
	if !any {
		s.miss("/var/log/pods has %d logs, and none of an ingress controller that is known by its name: {type: container, paths: [/var/log/pods/NAMESPACE_*/*/*.log]}", len(all))
	}
}

// journalUnits are those that tell of restarts, probes and workers.
var journalUnits = regexp.MustCompile(`^(kubelet|k3s|php[0-9.]*-fpm|haproxy)\.service$`)

// journal looks for units that say something of storms.
func (s *surveyor) journal(ctx context.Context) {
	if !s.live() {
		return
	}
	out, err := s.ask(ctx, "journalctl", "--no-pager", "-F", "_SYSTEMD_UNIT")
	if err != nil {
		s.miss("the journal cannot be read (%v)", err)
		return
	}
	var units []string
	for unit := range strings.FieldsSeq(out) {
		if journalUnits.MatchString(unit) {
			units = append(units, yamlQuoted(strings.TrimSuffix(unit, ".service")))
		}
	}
	slices.Sort(units)
	if len(units) > 0 {
		s.survey.sources = append(s.survey.sources, surveyedSource{kind: "journal", fields: []string{"units: [" + strings.Join(units, ", ") + "]"}})
	}
}

var maxChildren = regexp.MustCompile(`(?m)^\s*pm\.max_children\s*=\s*(\d+)`)

// phpPools reads how many workers php-fpm has.
func (s *surveyor) phpPools() {
	pools := append(s.files("/etc/php/*/fpm/pool.d/*.conf"), s.files("/etc/php-fpm.d/*.conf")...)
	for _, path := range pools {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if m := maxChildren.FindSubmatch(text); m != nil {
			n, err := strconv.Atoi(string(m[1]))
			if err != nil {
				continue
			}
			s.survey.workers = n
			s.survey.pools = append(s.survey.pools, fmt.Sprintf("%s: pm.max_children = %d", "/"+strings.TrimPrefix(strings.TrimPrefix(path, filepath.Clean(s.root)), "/"), n))
		}
	}
	if len(s.survey.pools) > 1 {
		s.survey.workers = 0 // which is whose is not known
	}
}

func (s *surveyor) addresses() {
	if !s.live() {
		return
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		s.miss("this machine's addresses cannot be read (%v)", err)
		return
	}
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && !ip.IP.IsLoopback() && !ip.IP.IsLinkLocalUnicast() {
			s.survey.own = append(s.survey.own, ip.IP.String())
		}
	}
}

// neighbours looks for Loki and Alertmanager on this machine, on the ports that they have by default.
func (s *surveyor) neighbours(ctx context.Context) {
	if !s.live() {
		return
	}
	client := &http.Client{Timeout: 2 * time.Second}
	answers := func(url string) bool {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return false
		}
		res, err := client.Do(req)
		return err == nil && res.Body.Close() == nil && res.StatusCode == http.StatusOK
	}
	if s.survey.loki == "" && answers("http://127.0.0.1:3100/loki/api/v1/status/buildinfo") {
		s.survey.loki = "http://127.0.0.1:3100"
	}
	if s.survey.alerts == "" && answers("http://127.0.0.1:9093/api/v2/status") {
		s.survey.alerts = "http://127.0.0.1:9093"
	}
}
