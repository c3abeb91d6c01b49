package main

import (
	"cmp"
	"context"
	"errors"
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
	sites    [][]string // hosts of each; the first names it
	workers  int        // of the one php-fpm pool; 0: none, or several
	pools    []string   // what is known of pools, for people
	own      []string   // addresses of this machine
	loki     string     // address; "": none was found
	alerts   string     // Alertmanager's
	missing  []string   // what could not be found out, and what to do
	skipped  []string   // logs that are not read, and why
	nginxLog bool       // nginx's access log is among the sources
}

// A surveyedSource is one entry of sources, with what is to be told of it.
type surveyedSource struct {
	about   []string // lines of comment
	name    string
	kind    string
	paths   []string // files and globs; of kinds without files: none
	exclude []string // of what the globs match
	fields  []string // of the mapping, beside those
}

// excluded are the paths of other sources that the globs of one match: read there, they would count twice.
func (s surveyedSource) excluded(all []surveyedSource) (paths []string) {
	for _, other := range all {
		for _, path := range other.paths {
			if other.name != s.name && anyMatches(s.paths, path) {
				paths = append(paths, path)
			}
		}
	}
	return paths
}

// anyMatches tells whether one of several globs matches a path.
func anyMatches(globs []string, path string) bool {
	return slices.ContainsFunc(globs, func(glob string) bool {
		fits, err := filepath.Match(glob, path)
		return err == nil && fits || glob == path
	})
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
	s.sample()
	s.addresses()
	s.neighbours(ctx)
	return s.survey
}

func (s *surveyor) miss(format string, args ...any) {
	s.survey.missing = append(s.survey.missing, fmt.Sprintf(format, args...))
}

// ask runs a program of the machine and gives what it prints.
func (s *surveyor) ask(ctx context.Context, name string, args ...string) (stdout, stderr string, err error) {
	for _, dir := range []string{"", "/usr/sbin/", "/usr/local/sbin/"} {
		if path, err := exec.LookPath(dir + name); err == nil {
			ctx, cancel := context.WithTimeout(ctx, commandTime)
			defer cancel()
			var out, said strings.Builder
			cmd := exec.CommandContext(ctx, path, args...)
			cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &said, time.Second
			err := cmd.Run()
			return out.String(), said.String(), err
		}
	}
	return "", "", exec.ErrNotFound
}

// nginx reads the configuration as nginx itself prints it; where that is not to be had, from its files.
func (s *surveyor) nginx(ctx context.Context) {
	conf := cmp.Or(s.nginxConf, "/etc/nginx/nginx.conf")
	var text string
	var include nginxInclude
	if s.live() {
		args := []string{"-T"}
		if s.nginxConf != "" {
			args = append(args, "-c", s.nginxConf)
		}
		if out, _, err := s.ask(ctx, "nginx", args...); err == nil {
			text, include = nginxDump(out)
		}
	}
	if text == "" {
		var err error
		if text, include, err = nginxFiles(s.root, conf); err != nil {
			if !os.IsNotExist(err) {
				s.miss("nginx's configuration cannot be read (%v): run this as root", err)
			}
			return
		}
	}
	found := readNginx(text, include)
	s.survey.sites = sitesOf(found.servers)
	for _, log := range found.logs {
		s.nginxLog(ctx, log, found.formats)
	}
	for _, odd := range found.odd {
		s.miss("nginx writes an access log to %s, which is no file here: see the sources syslog and container", odd)
	}
	for _, path := range found.errors {
		s.add("file", []string{path}, nil, []string{"format: nginx_error"})
	}
}

// sitesOf makes sites of the names that servers have. A server that shares a name with one other belongs to it; one
// that redirects for many is none of its own. So the servers with few names come first.
func sitesOf(servers [][]string) (sites [][]string) {
	sorted := slices.Clone(servers)
	slices.SortStableFunc(sorted, func(a, b []string) int { return len(a) - len(b) })
	of := map[string]int{} // the site of a host
	for _, hosts := range sorted {
		var rest []string
		with := map[int]bool{}
		for _, h := range hosts {
			if i, known := of[h]; known {
				with[i] = true
			} else {
				rest = append(rest, h)
			}
		}
		if len(rest) == 0 {
			continue
		}
		site := len(sites)
		if len(with) == 1 {
			for site = range with { // the one
			}
			sites[site] = append(sites[site], rest...)
		} else {
			sites = append(sites, rest)
		}
		for _, h := range rest {
			of[h] = site
		}
	}
	slices.SortStableFunc(sites, func(a, b []string) int { return firstOf(servers, a[0]) - firstOf(servers, b[0]) })
	return sites
}

// firstOf is the first of the servers that has a name.
func firstOf(servers [][]string, host string) int {
	return slices.IndexFunc(servers, func(hosts []string) bool { return slices.Contains(hosts, host) })
}

// nginxLog adds an access log with the format that the configuration gives it.
func (s *surveyor) nginxLog(ctx context.Context, log nginxLog, formats map[string]string) {
	if !filepath.IsAbs(log.path) {
		prefix := s.nginxPrefix(ctx)
		if prefix == "" {
			s.miss("nginx writes an access log to %s, below its prefix, which nginx -V tells: name the file as a source", log.path)
			return
		}
		log.path = filepath.Join(prefix, log.path)
	}
	switch {
	case log.packed:
		s.miss("nginx packs %s as it writes it (gzip): squall reads it when it is complete, too late to page; leave gzip out there", log.path)
		return
	case log.doubled > 0 && log.doubled == log.levels:
		s.survey.skipped = append(s.survey.skipped, fmt.Sprintf("%s is left out: each of its requests is in %s too, which tells no less, and would count twice.", log.path, log.better))
		return
	}
	about, fields := s.nginxFormat(log, formats[log.format])
	if log.doubled > 0 {
		about = append(about, "Some of its requests are in "+log.better+" too, and count twice: let nginx write each to one of the two.")
	}
	if log.held > 0 {
		about = append(about, fmt.Sprintf("nginx holds lines back for %s (flush), and so comes each page later: write flush=5s.", shortDuration(log.held)))
		fields = append(fields, "lateness: "+shortDuration(log.held+defaultLateness))
	}
	if log.full {
		about = append(about, "nginx holds lines back until its buffer is full, however long that takes: too late to page. Write flush=5s",
			"behind buffer=.")
	}
	if s.add("file", []string{log.glob()}, about, fields) {
		s.survey.nginxLog = true
	}
}

// nginxFormat tells how the lines of an access log are read.
func (s *surveyor) nginxFormat(log nginxLog, text string) (about, fields []string) {
	switch {
	case log.format == "combined":
		fields = append(fields, "format: nginx_combined")
		about = append(about, "nginx's combined format tells no times and no host: squall sees storms and clients that give up, and",
			"neither slow answers nor busy workers. A log_format that tells all: see \"The nginx log that tells squall most\"",
			"in the README.")
	case text == "":
		about = append(about, "log_format "+log.format+" was not found: auto tries.")
	default:
		choice, err := nginxChoice(text)
		if err != nil {
			about = append(about, fmt.Sprintf("log_format %s cannot be read as it is written (%v): auto tries.", log.format, err))
			break
		}
		fields = append(fields, fmt.Sprintf("format: {type: nginx, log_format: %s}", yamlQuoted(text)))
		for _, lack := range choice.lacks() {
			about = append(about, "log_format "+log.format+": "+lack)
		}
	}
	if !hasVariable(text, "host") && !hasVariable(text, "http_host") && !hasVariable(text, "server_name") {
		if i := slices.IndexFunc(s.survey.sites, func(hosts []string) bool { return len(log.hosts) > 0 && slices.Contains(hosts, log.hosts[0]) }); i >= 0 {
			fields = append(fields, "site: "+yamlQuoted(s.survey.sites[i][0]))
		}
	}
	return about, fields
}

// nginxChoice is the format of a log_format of nginx's.
func nginxChoice(text string) (formatChoice, error) {
	return chooseFormat("nginx", func(v any) error { *v.(*formatSettings) = formatSettings{LogFormat: text}; return nil })
}

var prefixOption = regexp.MustCompile(`--prefix=(\S+)`)

// nginxPrefix is the folder that relative paths of nginx's configuration begin in; "" where it is not known.
func (s *surveyor) nginxPrefix(ctx context.Context) string {
	if !s.live() {
		return ""
	}
	_, said, err := s.ask(ctx, "nginx", "-V")
	if err != nil {
		return ""
	}
	if m := prefixOption.FindStringSubmatch(said); m != nil {
		return m[1]
	}
	return "/usr/local/nginx" // nginx's own default
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
			s.add("file", []string{glob}, nil, nil)
		}
	}
}

// files are what a glob finds in the machine but folders, without what was rotated.
func (s *surveyor) files(glob string) (paths []string) {
	found, err := filepath.Glob(filepath.Join(s.root, glob))
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(found, func(path string) bool {
		info, err := os.Stat(path)
		return err == nil && info.IsDir()
	})
}

// shown is a path as the machine itself has it.
func (s *surveyor) shown(path string) string {
	return "/" + strings.TrimPrefix(strings.TrimPrefix(path, filepath.Clean(s.root)), "/")
}

// mostSampled is how many files of a source are read.
const mostSampled = 5

// add notes a source of files, with what its files show. It tells whether it is new.
func (s *surveyor) add(kind string, globs, about, fields []string) bool {
	if globs = slices.DeleteFunc(globs, func(glob string) bool { return s.told[glob] }); len(globs) == 0 {
		return false
	}
	for _, glob := range globs {
		s.told[glob] = true
	}
	s.survey.sources = append(s.survey.sources, surveyedSource{kind: kind, paths: globs, fields: fields, name: s.name(kind, globs[0]), about: about})
	return true
}

// sample tells of each source what its files show, when it is known which of them it excludes.
func (s *surveyor) sample() {
	for i := range s.survey.sources {
		src := &s.survey.sources[i]
		src.exclude = src.excluded(s.survey.sources)
		if len(src.paths) > 0 {
			src.about = append(s.shows(*src), src.about...)
		}
	}
}

// shows tells what the files of a source show.
func (s *surveyor) shows(src surveyedSource) (about []string) {
	var found []string
	for _, glob := range src.paths {
		for _, path := range s.files(glob) {
			if !slices.Contains(found, path) && !anyMatches(src.exclude, s.shown(path)) {
				found = append(found, path)
			}
		}
	}
	switch len(found) {
	case 0:
		about = append(about, "No such file yet: squall waits for it.")
	case 1:
	default:
		about = append(about, fmt.Sprintf("%d files.", len(found)))
	}
	for _, path := range found[:min(len(found), mostSampled)] {
		auto, err := chooseFormat("auto", func(any) error { return nil })
		if err != nil {
			continue
		}
		got, err := sampleLog(path, opener{format: auto, zone: time.UTC, framing: framings[src.kind]})
		switch {
		case errors.Is(err, errNoFile):
			s.miss("%s is no file (a pipe, perhaps): squall follows files; let the server write one, or send by syslog", s.shown(path))
		case err != nil:
			s.miss("%s cannot be read (%v): squall's user must be allowed to, see the unit's head", s.shown(path), err)
		default:
			about = append(about, s.shown(path)+": "+got.words(s.now))
		}
	}
	return about
}

// name makes a source's name of the path that it reads: positions are kept under it, and must not move when another
// source is added.
func (s *surveyor) name(kind, path string) string {
	dir, file := filepath.Split(path)
	words := strings.TrimSuffix(strings.TrimSuffix(file, "log"), ".")
	if folder := filepath.Base(dir); folder != "log" {
		words = folder + "-" + words
	}
	if kind == "container" {
		words = "ingress"
	}
	name := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(words), "-"), "-")
	name = cmp.Or(name, kind)
	for i := 1; ; i++ {
		numbered := name
		if i > 1 {
			numbered = fmt.Sprintf("%s-%d", name, i)
		}
		if !slices.ContainsFunc(s.survey.sources, func(src surveyedSource) bool { return src.name == numbered }) {
			return numbered
		}
	}
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

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
		nearest, _, _ := strings.Cut(s.nearest, " (--") // the flags are another command's
		parts = append(parts, nearest)
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
	var globs []string
	for _, name := range ingresses {
		if glob := "/var/log/pods/*" + name + "*/*/*.log"; len(s.files(glob)) > 0 {
			globs = append(globs, glob)
		}
	}
	// One source: a file that two globs of a source match is read once.
	if len(globs) == 0 || !s.add("container", globs, nil, nil) {
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
	out, _, err := s.ask(ctx, "journalctl", "--no-pager", "-F", "_SYSTEMD_UNIT")
	if err != nil {
		s.miss("the journal cannot be read (%v)", err)
		return
	}
	var units []string
	for unit := range strings.FieldsSeq(out) {
		if unit == "haproxy.service" && s.reads("haproxy") { // Debian's writes the same lines to a file
			continue
		}
		if journalUnits.MatchString(unit) {
			units = append(units, yamlQuoted(strings.TrimSuffix(unit, ".service")))
		}
	}
	slices.Sort(units)
	if len(units) > 0 {
		s.survey.sources = append(s.survey.sources, surveyedSource{kind: "journal", name: "journal", fields: []string{"units: [" + strings.Join(units, ", ") + "]"}})
	}
}

// reads tells whether a source of the kind file is there whose path has a word in it.
func (s *surveyor) reads(word string) bool {
	return slices.ContainsFunc(s.survey.sources, func(src surveyedSource) bool {
		return src.kind == "file" && slices.ContainsFunc(src.paths, func(path string) bool { return strings.Contains(path, word) })
	})
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
		for _, m := range maxChildren.FindAllSubmatch(text, -1) {
			n, err := strconv.Atoi(string(m[1]))
			if err != nil {
				continue
			}
			s.survey.workers = n
			s.survey.pools = append(s.survey.pools, fmt.Sprintf("%s: pm.max_children = %d", s.shown(path), n))
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
