// Package format holds the kinds of pipeline.Format: each turns the lines of one kind of log into Records and
// Events. auto finds the kind from the lines themselves.
package format

import (
	"fmt"
	"slices"
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
}

// A kind is how a format is made, and its place in the order in which auto tries formats: the most specific
// first, so that a line is not taken by a format that asks for less. 0: auto does not try it.
type kind struct {
	new  func(Config) (pipeline.Format, error)
	auto int
}

// kinds is the table of formats: the one place where their names are written.
var kinds = map[string]kind{
	"alb":              {newALB, 30},
	"apache":           {newApache, 52},
	"apache_combined":  {newApacheCombined, 0},
	"apache_common":    {newApacheCommon, 0},
	"aws_waf":          {newAWSWAF, 28},
	"azure_appgw_json": {newAzureGateway, 29},
	"caddy":            {family(newCaddyJSON, newCaddyConsole), 0},
	"caddy_console":    {newCaddyConsole, 27},
	"caddy_json":       {newCaddyJSON, 33},
	"cloudfront":       {family(newCloudFrontJSON, newCloudFrontTSV), 0},
	"cloudfront_json":  {newCloudFrontJSON, 34},
	"cloudfront_tsv":   {newCloudFrontTSV, 28},
	"elb_classic":      {newALB, 0},
	"envoy":            {family(newEnvoyJSON, newEnvoyText, newIstioText), 0},
	"envoy_json":       {newEnvoyJSON, 32},
	"envoy_text":       {newEnvoyText, 27},
	"gcp_lb_json":      {newGCPLoadBalancer, 29},
	"haproxy":          {newHAProxy, 25},
	"haproxy_clf":      {newHAProxyCLF, 0},
	"haproxy_http":     {newHAProxyHTTP, 0},
	"haproxy_https":    {newHAProxyHTTPS, 0},
	"haproxy_tcp":      {newHAProxyTCP, 0},
	"ingress_nginx":    {newIngressNginx, 40},
	"istio_text":       {newIstioText, 26},
	jsonName:           {newJSON, 80},
	"k8s_event":        {newK8sEvent, 10},
	"k8s_event_json":   {newK8sEvent, 0},
	"kernel_oom":       {newKernelOOM, 65},
	"kubelet":          {newKubelet, 60},
	"kubernetes":       {newKubernetes, 0},
	"nginx":            {newNginx, 50},
	"nginx_combined":   {newNginxCombined, 0},
	"nginx_error":      {newNginxError, 45},
	"nginx_extended":   {newNginxExtended, 0},
	"nginx_json":       {newNginxJSON, 35},
	"php_fpm":          {newPHPFPM, 70},
	"php_fpm_access":   {newPHPFPMAccess, 56},
	"php_fpm_slow":     {newPHPFPMSlow, 72},
	"pod_status":       {newPodStatus, 20},
	"traefik":          {family(newTraefikJSON, newTraefikCLF), 0},
	"traefik_clf":      {newTraefikCLF, 54},
	"traefik_json":     {newTraefikJSON, 31},
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
		return nil, fmt.Errorf("format %q is unknown; did you mean %s?", cfg.Name, nearest(cfg.Name))
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

// nearest finds the name with the fewest edits to s; the first of equals.
func nearest(s string) string {
	best, edits := "", 1<<30
	for _, name := range Names() {
		if d := distance(s, name); d < edits {
			best, edits = name, d
		}
	}
	return best
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
