package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/alerts/notify"
	"github.com/squall-sre/squall/pipeline/fleet"
	"github.com/squall-sre/squall/pipeline/loki"
	"github.com/squall-sre/squall/pipeline/source"
)

// How a thing is that the doctor looked at.
const (
	healthy = "ok"
	weak    = "warn" // squall runs, and sees or tells less than it could
	sick    = "FAIL"
)

// A diagnosis is what the doctor says of one thing.
type diagnosis struct {
	Status string `json:"status"`
	What   string `json:"what"`
	Found  string `json:"found"`
	Do     string `json:"do,omitempty"`
}

// A doctor tries each part of a configuration as the service would use it.
type doctor struct {
	config *Config
	now    func() time.Time
	reader *reader
	found  []diagnosis
}

// newDoctorCommand makes `squall doctor`.
func newDoctorCommand() *cobra.Command {
	var path, service string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "try every source, Loki and Alertmanager, and say what to do where one does not work",
		Long: "doctor reads the configuration and tries what it names: whether each log is there, may be read by the service's\n" +
			"user, is written to, and fits its format; whether Loki takes pushes and Alertmanager takes alerts (it sends\n" +
			"none); whether the fleet's servers take panes and an aggregator is heard; whether the spool can be written\n" +
			"and the port is free. It changes nothing. It exits with 1 when something does not work.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d := &doctor{now: time.Now, reader: newReader(cmd.Context(), service)}
			if c, err := loadConfig(path, os.LookupEnv); err != nil {
				d.say(sick, "configuration", path, "mend it: "+err.Error())
			} else if err := c.RequireSources(); err != nil && !c.Fleet.on() {
				d.say(sick, "configuration", path, err.Error())
			} else {
				d.say(healthy, "configuration", fmt.Sprintf("%s: %d sources, %d sites", path, len(c.Sources), len(c.Sites)), "")
				d.config = c
				d.examine(cmd.Context())
			}
			return d.report(cmd.OutOrStdout(), asJSON)
		},
	}
	f := cmd.Flags()
	f.StringVar(&path, "config", configPath, "configuration `FILE`")
	f.StringVar(&service, "user", "squall", "whether `USER`, of the service, may read the logs: asked when root runs this")
	f.BoolVar(&asJSON, "json", false, "print a list of objects instead of a table")
	return cmd
}

func (d *doctor) say(status, what, found, do string) {
	d.found = append(d.found, diagnosis{status, what, found, do})
}

var errSick = errors.New("something does not work: see the lines with FAIL")

// report prints what was found; the error is for the exit code.
func (d *doctor) report(out io.Writer, asJSON bool) error {
	var err error
	for _, f := range d.found {
		if f.Status == sick {
			err = errSick
		}
	}
	if asJSON {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		return errors.Join(enc.Encode(d.found), err)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, f := range d.found {
		fmt.Fprintf(w, "%s\t%s\t%s\n", f.Status, alerts.Escape(f.What), alerts.Escape(f.Found))
		if f.Do != "" {
			for line := range strings.SplitSeq(f.Do, "\n") {
				fmt.Fprintf(w, "\t\t→ %s\n", alerts.Escape(line))
			}
		}
	}
	return errors.Join(w.Flush(), err)
}

// probeTime bounds one try.
const probeTime = 10 * time.Second

func (d *doctor) examine(ctx context.Context) {
	for i := range d.config.Sources {
		d.source(ctx, &d.config.Sources[i])
	}
	d.pools()
	d.spool()
	d.loki(ctx)
	d.notifiers(ctx)
	d.fleet(ctx)
	d.web(ctx)
}

func (d *doctor) source(ctx context.Context, s *SourceConfig) {
	what := "source " + s.Name
	choice, err := chooseFormat(s.Format.Type, s.Format.Decode)
	if err != nil {
		d.say(sick, what, err.Error(), "")
		return
	}
	for _, lack := range choice.lacks() {
		d.say(weak, what, "log_format: "+lack, "add it to nginx's log_format, and to the configuration")
	}
	src, err := source.New(s.Kind.Decode, source.Runtime{
		Name: s.Name, Logger: zap.NewNop(), Metrics: source.NewMetrics(prometheus.NewRegistry()), Now: d.now, Stdin: strings.NewReader(""),
	})
	if err != nil {
		d.say(sick, what, err.Error(), "")
		return
	}
	if p, ok := src.(source.Prober); ok {
		ctx, cancel := context.WithTimeout(ctx, probeTime)
		defer cancel()
		found, err := p.Probe(ctx)
		d.tried(what, found, err, "mend the access that this names; then run this again")
		return
	}
	switch s.Type {
	case "file", "container":
		o := opener{format: choice, zone: s.Timezone.Location, framing: framings[s.Type]}
		patterns := s.Kind.node.get("paths").texts()
		if len(patterns) == 0 {
			patterns = []string{"/var/log/pods/*/*/*.log"}
		}
		for _, pattern := range patterns {
			d.files(what, pattern, s.Kind.node.get("exclude").texts(), o, choice.name)
		}
	case "syslog":
		for _, l := range s.Kind.node.get("listen").texts() {
			d.listener(ctx, what, l)
		}
	default:
		d.say(healthy, what, s.Type+": nothing to try", "")
	}
}

// tried says how a try ended.
func (d *doctor) tried(what, found string, err error, do string) {
	if err == nil {
		d.say(healthy, what, found, "")
		return
	}
	text := maskURL(err.Error())
	for _, secret := range secretsOf(d.config.root, nil) {
		text = strings.ReplaceAll(text, secret, redacted)
	}
	if known := remedy(err); known != "" {
		do = strings.TrimSpace(known + "\n" + do)
	}
	d.say(sick, what, text, do)
}

// remedy is what to do about a fault that is no answer, "" where the fault itself does not tell.
func remedy(err error) string {
	var cert *tls.CertificateVerificationError
	var name *net.DNSError
	switch {
	case errors.As(err, &cert):
		return "its certificate is not trusted, or has another name: tls_config: {ca_file: …, server_name: …}"
	case errors.As(err, new(tls.RecordHeaderError)), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return "it speaks http there: write http://"
	case strings.Contains(err.Error(), "malformed HTTP response"), errors.Is(err, unix.ECONNRESET), errors.Is(err, io.EOF):
		return "it ends the connection without an answer: is it https:// there?"
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("it does not answer within %s: is a firewall between, is it overloaded?", probeTime)
	case errors.As(err, &name):
		return "its name is not found: is it the name that this machine knows it by?"
	case errors.Is(err, unix.ECONNREFUSED):
		return "nothing listens there: does it run, and on this port?"
	}
	return ""
}

// mostExamined is how many files of a pattern are read; of the others only that they may be.
const mostExamined = 20

func (d *doctor) files(what, pattern string, exclude []string, o opener, named string) {
	found, err := filepath.Glob(pattern)
	if err != nil {
		d.say(sick, what, fmt.Sprintf("%s: %v", pattern, err), "")
		return
	}
	found = slices.DeleteFunc(found, func(path string) bool { return path != pattern && anyMatches(exclude, path) })
	if len(found) == 0 {
		d.say(weak, what, "no file matches "+pattern, "squall waits for one. Is the server's log there? squall init looks for it; is its folder one that this user may enter?")
		return
	}
	healthyFiles, newest := 0, time.Time{}
	for i, path := range found {
		if strings.HasSuffix(path, ".gz") || strings.HasSuffix(path, ".zst") || strings.HasSuffix(path, ".bz2") {
			continue
		}
		if _, err := regular(path); errors.Is(err, errNoFile) {
			if path == pattern { // a glob may match what it is not meant to
				d.say(sick, what, err.Error(), "squall follows files: let the server write one, or send its log to a source syslog")
			}
			continue
		}
		if err := d.reader.mayRead(path); err != nil {
			d.say(sick, what, err.Error(), "let the user read it: usermod -aG, setfacl, or the drop-in at the unit's head (/usr/lib/systemd/system/squall.service)")
			continue
		}
		healthyFiles++
		if i >= mostExamined {
			continue
		}
		got, err := sampleLog(path, o)
		switch {
		case err != nil:
			d.say(sick, what, err.Error(), "")
		case !got.fits():
			d.say(sick, what, fmt.Sprintf("%s: %d of its last %d lines do not fit format %s; %s", path, got.failed, got.lines, named, cmp.Or(got.nearest, "no format fits")),
				"squall explain tells of one line; name the format, or log_format, at the source")
		case got.requests > 0 && got.times == 0:
			d.say(weak, what, path+": no times in it: neither slow answers nor busy workers can be seen", "log $request_time and $upstream_response_time: \"The nginx log that tells squall most\" in the README")
		}
		if got.newest.After(newest) {
			newest = got.newest
		}
	}
	if healthyFiles == 0 {
		return
	}
	text := fmt.Sprintf("%s: %d files may be read", pattern, healthyFiles)
	switch age := d.now().Sub(newest).Round(time.Second); {
	case newest.IsZero():
		text += "; no line with a time yet"
	case age < -5*time.Minute:
		d.say(weak, what, fmt.Sprintf("%s: its newest line is %s ahead of this machine's clock", pattern, -age), "a log without a zone needs timezone at its source; or the clock is wrong")
		return
	case age > time.Hour:
		d.say(weak, what, fmt.Sprintf("%s; the newest line is %s old", text, age), "does the server write here now? A log without a zone needs timezone at its source")
		return
	default:
		text += fmt.Sprintf("; the newest line is %s old", age)
	}
	d.say(healthy, what, text, "")
}

// listener sees whether squall could listen there, or does already.
func (d *doctor) listener(ctx context.Context, what, url string) {
	network, address, _ := strings.Cut(url, "://")
	d.listens(ctx, what, network, address, url+" is free to listen on", url+": squall runs, and listens there or another does",
		"another program listens there, or the address is not this machine's")
}

// lowPort is what to do where the service may not have a port.
const lowPort = "a port from 1024 up; or a drop-in (systemctl edit squall) with [Service] CapabilityBoundingSet= and AmbientCapabilities=CAP_NET_BIND_SERVICE"

// listens sees whether an address is free, or squall's already.
func (d *doctor) listens(ctx context.Context, what, network, address, free, ours, do string) {
	if err := d.reader.mayListen(address); err != nil {
		d.say(sick, what, err.Error(), lowPort)
		return
	}
	var lc net.ListenConfig
	var c io.Closer
	var err error
	if network == "udp" {
		c, err = lc.ListenPacket(ctx, network, address)
	} else {
		c, err = lc.Listen(ctx, network, address)
	}
	if err == nil {
		d.tried(what, free, c.Close(), "")
		return
	}
	switch is := d.answers(ctx); {
	case errors.Is(err, unix.EADDRINUSE) && is == squallAnswers:
		d.say(healthy, what, ours, "")
	case errors.Is(err, unix.EADDRINUSE) && is == lockedAnswers:
		d.say(weak, what, address+" is in use; who has web.listen asks for a password: squall, if web.config_file asks for one", "")
	default:
		d.say(sick, what, err.Error(), do)
	}
}

func (d *doctor) pools() {
	known := d.config.SiteDefaults.Pool.Workers > 0
	for i := range d.config.Sites {
		known = known || d.config.Sites[i].Pool.Workers > 0
	}
	if !known {
		d.say(weak, "pool", "no site tells how many workers it has: saturation is silent, and causes are at most probable",
			"site_defaults: {pool: {workers: N}}; of php-fpm N is pm.max_children, over all machines")
	}
}

func (d *doctor) spool() {
	dir := d.config.Spool.Dir
	at := dir
	for at != "/" && at != "." {
		if _, err := os.Stat(at); err == nil || !errors.Is(err, os.ErrNotExist) {
			break
		}
		at = filepath.Dir(at)
	}
	if err := d.reader.mayWrite(at); err != nil && (at == dir || !d.reader.service) { // systemd makes the service's
		d.say(sick, "spool", err.Error(), "the service's StateDirectory, or a folder that squall's user may write")
		return
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(at, &fs); err != nil {
		d.say(sick, "spool", fmt.Sprintf("%s: %v", at, err), "")
		return
	}
	free := int64(fs.Bavail) * fs.Bsize
	text := fmt.Sprintf("%s: %d MiB free for up to %d MiB", dir, free>>20, d.config.Spool.MaxBytes>>20)
	if free < int64(d.config.Spool.MaxBytes) {
		d.say(weak, "spool", text, "a full disk drops the oldest lines: lower spool.max_bytes, or make room")
		return
	}
	d.say(healthy, "spool", text, "")
}

func (d *doctor) loki(ctx context.Context) {
	if d.config.Loki.URL == "" {
		d.say(weak, "loki", "no url: lines stay in the spool for "+shortDuration(d.config.Spool.MaxAge), "loki: {url: http://loki:3100}, unless that is meant")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	found, err := loki.Probe(ctx, d.config.Loki)
	d.tried("loki", found, err, "lines wait in the spool until it takes them")
}

func (d *doctor) notifiers(ctx context.Context) {
	pages := false
	for i, n := range d.config.Notify {
		what := fmt.Sprintf("notify %s-%d", n.Type, i+1)
		peers, err := notify.New(n.Kind.Decode, notify.Runtime{Name: fmt.Sprintf("%s-%d", n.Type, i+1), Now: d.now, Stdout: io.Discard})
		if err != nil {
			d.say(sick, what, err.Error(), "")
			continue
		}
		pages = pages || n.Type != "stdout"
		for _, peer := range peers {
			if p, ok := peer.Notifier.(notify.Prober); ok {
				ctx, cancel := context.WithTimeout(ctx, probeTime)
				found, err := p.Probe(ctx)
				cancel()
				d.tried("notify "+peer.Name, found, err, "nobody is paged by it until then; every instance must be listed, never a balancer")
			}
		}
	}
	if !pages {
		d.say(weak, "notify", "alerts are printed, and nobody is paged", "notify: [{type: alertmanager, urls: [http://alertmanager:9093]}]")
	}
}

// fleet tries the fleet's servers as a node does; an aggregator that is its own server only has to be able to listen.
func (d *doctor) fleet(ctx context.Context) {
	f := &d.config.Fleet
	if f.Embedded {
		d.fleetServer(ctx)
	}
	if f.NATS == "" {
		return
	}
	patience := min(d.config.Pane+3*time.Second, probeTime)
	ctx, cancel := context.WithTimeout(ctx, probeTime+patience)
	defer cancel()
	server, heard, err := fleet.Probe(ctx, f.link(), patience)
	do := fleetAdvice(f, err)
	if do == "" {
		do = "fleet.nats names the servers; panes wait on this node until one takes them"
	}
	if errors.As(err, new(*tls.CertificateVerificationError)) { // the words for other TLS do not fit
		err = errors.New(err.Error())
	}
	d.tried("fleet", server+" takes this node's panes", err, do)
	switch {
	case err != nil:
	case heard == "":
		d.say(weak, "fleet", fmt.Sprintf("no aggregator was heard within %s: this node tells its alerts itself", shortDuration(patience)),
			"does squall aggregate run? It tells something after each pane, once a node has told it one")
	default:
		d.say(healthy, "fleet", "the aggregator "+heard+" is heard", "")
	}
}

// fleetServer tries what an aggregator that is its own server is made of.
func (d *doctor) fleetServer(ctx context.Context) {
	own := d.config.embedded()
	d.tried("fleet server", "its certificate, users and routes are sound", own.Check(), "mend fleet.server, and the files that it names")
	if host, _, err := net.SplitHostPort(own.Listen); err == nil && len(own.Users) == 0 && own.CA == "" {
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			d.say(weak, "fleet server", "whoever reaches "+own.Listen+" may tell panes of any node, and read them",
				"fleet.server: nodes and aggregators with their public NKeys, cert_file, key_file and ca_file")
		}
	}
	for _, address := range []string{own.Listen, own.ClusterListen} {
		if address != "" {
			d.listens(ctx, "fleet server", "tcp", address, address+" is free to listen on", address+": squall runs, and listens there or another does",
				"another program listens there, or the address is not this machine's")
		}
	}
}

// fleetAdvice is what to do about a fault of the way to the fleet, "" where the general words do.
func fleetAdvice(f *FleetConfig, err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	has := func(part string) bool { return strings.Contains(text, part) }
	switch {
	case errors.Is(err, fleet.ErrStranger):
		return "fleet.nkey_file or credentials_file is missing, or its public half is not among the server's users (fleet.server.nodes of the aggregators)"
	case errors.Is(err, fleet.ErrRights):
		return fmt.Sprintf("let this user publish to squall.%s.pane.%s, and subscribe to %s.> and squall.%[1]s.cover.>; is it the key of this node, and the cluster's name right?",
			f.Cluster, f.name(), fleet.InboxPrefix(f.name()))
	case errors.Is(err, fleet.ErrNoStream):
		return "start squall aggregate, which makes the stream; of a cluster most servers must run; is JetStream on, and fleet.cluster the same there?"
	case errors.As(err, new(*tls.CertificateVerificationError)):
		return "fleet.ca_file has to name those who sign the servers' certificates, which have to be good today for the names in fleet.nats"
	case has("remote error: tls: "):
		return "the servers refuse fleet.cert_file: is it good today, and signed by their ca_file? With an NKey none is needed"
	case has("nkeys not supported by the server"):
		return "the server knows no NKeys: name this node's public one among its users, or take fleet.nkey_file away"
	case has("secure connection not available"):
		return "the server speaks no TLS there: give it a certificate, or write nats:// in fleet.nats"
	case has("read the NKey"), has("read the credentials"):
		return "mend fleet.nkey_file or credentials_file: `nk -gen user -pubout` prints a seed, for the file, and its public half, for the servers"
	case has("root certificate"), has("rootCA file"):
		return "mend fleet.ca_file: certificates as PEM, which the service's user may read"
	case has("client certificate"):
		return "mend fleet.cert_file and key_file: a certificate and its key as PEM, which the service's user may read"
	}
	return ""
}

// Who answers where squall's page would be.
const (
	nobodyAnswers = iota
	lockedAnswers // somebody who asks for a password
	squallAnswers
)

// answers tells who answers where this squall would. The page may have TLS, whose certificate need not be this host's.
func (d *doctor) answers(ctx context.Context) (who int) {
	client := &http.Client{
		Timeout:   time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}, //nolint:gosec // it is told nothing
	}
	for _, scheme := range []string{"http", "https"} {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+d.config.Web.Listen+"/metrics", nil)
		if err != nil {
			continue
		}
		res, err := client.Do(req)
		if err != nil {
			continue
		}
		text, err := io.ReadAll(io.LimitReader(res.Body, 4<<20))
		switch err = errors.Join(err, res.Body.Close()); {
		case err == nil && bytes.Contains(text, []byte("squall_build_info")):
			return squallAnswers
		case res.StatusCode == http.StatusUnauthorized && d.config.Web.ConfigFile != "":
			who = lockedAnswers
		}
	}
	return who
}

func (d *doctor) web(ctx context.Context) {
	d.listens(ctx, "web", "tcp", d.config.Web.Listen, d.config.Web.Listen+" is free: squall does not run",
		"squall runs: "+d.config.Web.Listen, "another program has web.listen: give squall another")
}
