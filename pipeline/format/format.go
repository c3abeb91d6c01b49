// Package format holds the kinds of pipeline.Format: each turns the lines of one kind of log into Records and
// Events. auto finds the kind from the lines themselves.
package format

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

// A Config says which format to make and what its lines leave out.
type Config struct {
	Name      string         // a kind, or auto; without framing (see SplitFraming). Empty: nginx with a LogFormat, else auto
	LogFormat string         // nginx: the log_format; apache: the LogFormat; php_fpm_access: the access.format; haproxy: the captured headers
	Zone      *time.Location // of times that carry none; nil is UTC
	// DurationUnit is the unit (s, ms, us or ns) of durations that neither their key nor their text tells (Caddy,
	// json, the first generation of Azure's gateway); empty: judged number by number, or unknown.
	DurationUnit string
	Fields       map[string]string // for json: where its objects hold the values, by target (see newJSON)
	Year         int               // of times that carry none (klog, syslog); 0: unknown until a full time is seen
	Near         int64             // ns since the epoch: about when the lines were written, for the same; 0: unknown
}

// A kind is how a format is made, and its place in the order in which auto tries formats: the most specific
// first, so that a line is not taken by a format that asks for less. 0: auto does not try it.
type kind struct {
	new  func(Config) (pipeline.Format, error)
	auto int
	// reads is what the kind reads, in the words of the README.
	reads string
}

// kinds is the table of formats: the one place where their names are written.
var kinds = map[string]kind{
	"alb":              {newALB, 30, "AWS Application Load Balancer; fields added at the end are passed over"},
	"apache":           {newApache, 52, "Apache: combined and vhost_combined with %D, %T/%D, %X or %I %O behind, or any `log_format` (a LogFormat)"},
	"apache_combined":  {newApacheCombined, 0, "combined and vhost_combined alone"},
	"apache_common":    {newApacheCommon, 0, "the common log format"},
	"aws_waf":          {newAWSWAF, 28, "AWS WAF: action, rule, method, URI, agent"},
	"azure_appgw_json": {newAzureGateway, 29, "Azure Application Gateway and Front Door"},
	"caddy":            {family(newCaddyJSON, newCaddyConsole), 0, "caddy_json and caddy_console"},
	"caddy_console":    {newCaddyConsole, 27, "Caddy's console encoder"},
	"caddy_json":       {newCaddyJSON, 33, "Caddy's JSON, in every spelling of times and durations"},
	"cloudfront":       {family(newCloudFrontJSON, newCloudFrontTSV), 0, "cloudfront_tsv and cloudfront_json"},
	"cloudfront_json":  {newCloudFrontJSON, 34, "CloudFront's standard logging v2 as JSON"},
	"cloudfront_tsv":   {newCloudFrontTSV, 28, "CloudFront, by the #Fields header or in the standard order"},
	"elb_classic":      {newALB, 0, "AWS Classic Load Balancer"},
	"envoy":            {family(newEnvoyJSON, newEnvoyText, newIstioText), 0, "envoy_json, envoy_text and istio_text"},
	"envoy_json":       {newEnvoyJSON, 32, "Envoy, Istio and Envoy Gateway as JSON, typed or not"},
	"envoy_text":       {newEnvoyText, 27, "Envoy's and Envoy Gateway's default text"},
	"gcp_lb_json":      {newGCPLoadBalancer, 29, "Google Cloud's load balancers"},
	"haproxy":          {newHAProxy, 25, "HAProxy: httplog, httpslog, CLF, tcplog told apart; captures; behind a syslog header or not"},
	"haproxy_clf":      {newHAProxyCLF, 0, "`option httplog clf` alone"},
	"haproxy_http":     {newHAProxyHTTP, 0, "`option httplog` alone"},
	"haproxy_https":    {newHAProxyHTTPS, 0, "`option httpslog` alone"},
	"haproxy_tcp":      {newHAProxyTCP, 0, "`option tcplog`: understood, and no request"},
	"ingress_nginx":    {newIngressNginx, 40, "ingress-nginx's defaults, old and new, text and JSON"},
	"istio_text":       {newIstioText, 26, "Istio's default text"},
	jsonName:           {newJSON, 80, "any application's JSON, by a map: `{type: json, fields: {status: code, path: req.path}}`"},
	"k8s_event":        {newK8sEvent, 10, "Kubernetes events, both APIs, as JSON"},
	"k8s_event_json":   {newK8sEvent, 0, "k8s_event"},
	"kernel_oom":       {newKernelOOM, 65, "the kernel's OOM killer"},
	"kubelet":          {newKubelet, 60, "kubelet, klog and JSON: probes, kills, restarts"},
	"kubernetes":       {newKubernetes, 0, "k8s_event and pod_status: what the source kubernetes hands on"},
	"nginx":            {newNginx, 50, "nginx: combined, the format above and its kin, F5's ingress controller, or any `log_format`"},
	"nginx_combined":   {newNginxCombined, 0, "combined alone"},
	"nginx_error":      {newNginxError, 45, "nginx's error log: limited requests, upstreams that timed out"},
	"nginx_extended":   {newNginxExtended, 0, "the format above and its kin alone"},
	"nginx_json":       {newNginxJSON, 35, "nginx with escape=json, by the names of its variables"},
	"php_fpm":          {newPHPFPM, 70, "php-fpm's error log: killed and slow requests, max_children reached"},
	"php_fpm_access":   {newPHPFPMAccess, 56, "php-fpm's access log, with any `log_format` (access.format): true service times"},
	"php_fpm_slow":     {newPHPFPMSlow, 72, "php-fpm's slow log"},
	"pod_status":       {newPodStatus, 20, "the state of a pod's containers as JSON"},
	"traefik":          {family(newTraefikJSON, newTraefikCLF), 0, "traefik_json and traefik_clf"},
	"traefik_clf":      {newTraefikCLF, 54, "Traefik's common format"},
	"traefik_json":     {newTraefikJSON, 31, "Traefik's JSON"},
}

// auto and mixed (files of several formats) are not in the table, since they are made of it. json alone takes a map
// of fields.
const (
	autoName  = "auto"
	mixedName = "mixed"
	jsonName  = "json"
)

// New makes a format.
func New(cfg Config) (pipeline.Format, error) {
	if cfg.Name == "" {
		cfg.Name = autoName
		if cfg.LogFormat != "" {
			cfg.Name = "nginx"
		}
	}
	if cfg.Zone == nil {
		cfg.Zone = time.UTC
	}
	if cfg.Name == autoName || cfg.Name == mixedName {
		if cfg.LogFormat != "" {
			return newNginxLayout(cfg)
		}
		return NewAuto(cfg)
	}
	if len(cfg.Fields) > 0 && cfg.Name != jsonName {
		return nil, fmt.Errorf("fields: %s finds its fields itself; the format that takes a map is %s", cfg.Name, jsonName)
	}
	k, ok := kinds[cfg.Name]
	if !ok {
		if near, edits := nearest(cfg.Name); 2*edits <= len(near) {
			return nil, fmt.Errorf("format %q is unknown; did you mean %s?", cfg.Name, near)
		}
		return nil, fmt.Errorf("format %q is unknown; there are %s", cfg.Name, strings.Join(Names(), ", "))
	}
	return k.new(cfg)
}

// Names lists the formats, sorted, auto among them.
func Names() []string {
	names := []string{autoName, mixedName}
	for name := range kinds {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Reads tells what a format reads, in a few words, and whether auto tries it. ok: it is in the table.
func Reads(name string) (text string, auto, ok bool) {
	k, ok := kinds[name]
	return k.reads, k.auto > 0, ok
}

// nearest finds the name with the fewest edits to s; the first of equals.
func nearest(s string) (best string, edits int) {
	edits = 1 << 30
	for _, name := range Names() {
		if d := distance(s, name); d < edits {
			best, edits = name, d
		}
	}
	return best, edits
}

// distance counts the insertions, deletions and replacements between two names (Levenshtein).
func distance(a, b string) int {
	if len(a) > 64 {
		a = a[:64]
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
