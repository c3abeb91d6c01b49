package alerts

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"time"

	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/parser"

	"github.com/squall-sre/squall/detectors"
)

// A Rule joins detections into an alert. It is the configuration's shape; what it means is checked by
// CheckRules.
type Rule struct {
	Name string `yaml:"name"`
	// When is an expression over detectors (github.com/expr-lang/expr). A detector's name alone tells whether it
	// is active for the by-values at hand; name.value, name.threshold, name.peak and the numbers of its evidence
	// are numbers, and a number that is not known makes every comparison with it false.
	When string `yaml:"when"`
	// While keeps a firing alert on; When where it is empty. A storm's page goes on until the queue behind it
	// has drained, after the storm itself is over.
	While string `yaml:"while"`
	// By names the labels over which detections are joined: one alert for each set of values. Default: site.
	By []string `yaml:"by"`
	// Within lets a detection count as active for this long after it was over.
	Within time.Duration `yaml:"within"`
	// For is how long When must hold before the alert fires.
	For time.Duration `yaml:"for"`
	// KeepFiringFor is how long the alert stays on after its condition was over.
	KeepFiringFor time.Duration `yaml:"keep_firing_for"`
	// Severity is page, warning or info, or an expression whose results are these words.
	Severity    string            `yaml:"severity"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"` // text/template over TemplateData
	Runbook     string            `yaml:"runbook"`     // an address
	Dashboard   string            `yaml:"dashboard"`   // an address, or the uid of a dashboard; see Config.Grafana
	Disabled    bool              `yaml:"disabled"`    // takes a shipped rule of this name away
}

// keepFiring is the shipped rules' keep_firing_for: the time in which a storm that takes a breath is one storm.
const keepFiring = 2 * time.Minute

// backfire is the pattern of a protection that hits whom it was to protect.
const backfire = "self_protection_backfire"

// shipped are the rules without configuration. The halves of a composite are recorded by the detectors and not
// paged: each alone is often nothing.
var shipped = []Rule{
	{
		// Both look back over a minute, and hold for so long after a stall of seconds: it must go on, too.
		Name: "ClientsGivingUp", Severity: string(Page), For: 30 * time.Second, KeepFiringFor: keepFiring,
		When:  "client_abandon and latency and not (client_abandon.abandoned_lately < client_abandon.threshold / 2)",
		While: "client_abandon and latency",
	},
	{
		Name: "HeadStorm", When: "head_storm", KeepFiringFor: keepFiring,
		Severity: `head_storm.reached_upstream_ratio == 0 ? "info" : "warning"`,
	},
	{
		Name: "StormHurting", When: "(head_storm or agent_flood) and (client_abandon or saturation)", Severity: string(Page),
		While: "client_abandon or saturation", KeepFiringFor: keepFiring,
	},
	{
		// Two minutes, since both look back over one: a rollout that stalls for less is over when it is told.
		// It goes on while clients leave a slow site: what they left behind is in no log, so that a pool which is still
		// used up looks half empty for a while.
		Name: "WorkersExhausted", When: "saturation and (client_abandon or latency)", Severity: string(Page),
		While: "saturation or client_abandon and latency",
		For:   2 * time.Minute, KeepFiringFor: keepFiring, Dashboard: "squall-origin",
	},
	{Name: "AgentFlood", When: "agent_flood", Severity: string(Warning), KeepFiringFor: keepFiring},
	{Name: "SelfLoop", When: "self_loop", Severity: string(Warning), KeepFiringFor: keepFiring},
	{
		Name: "LimiterBackfires", When: "ratelimit_backfire", Severity: string(Warning), KeepFiringFor: keepFiring,
		Labels: map[string]string{"pattern": backfire}, Dashboard: "squall-layers",
	},
	{
		// The half of probe_failure that is about a site: of the cluster's probes no access log tells what they reached.
		Name: "ProbeThroughApp", When: "probe_failure.reached_upstream_ratio > 0", Severity: string(Warning),
		KeepFiringFor: keepFiring, Dashboard: "squall-restarts",
	},
	{
		// A ticket for whoever owns the caller: nobody is to be woken.
		Name: "RetryLoop", When: "retry_loop", Severity: string(Warning), KeepFiringFor: keepFiring,
		Labels: map[string]string{"owner": "application"},
	},
	{
		// A minute, since a deploy answers 502 for seconds. A warning: who is to be woken when people are hurt by errors
		// alone is a matter of the site, and a broken page that one crawler asks for again and again is no such case.
		Name: "ErrorBurst", When: "error_burst", Severity: string(Warning), For: time.Minute, KeepFiringFor: keepFiring,
	},
	{Name: "WorkerTimeouts", When: "worker_timeout", By: []string{"cluster"}, Severity: string(Warning), KeepFiringFor: keepFiring, Dashboard: "squall-restarts"},
	{Name: "CacheStampede", When: "cache_stampede", Severity: string(Warning), KeepFiringFor: keepFiring, Dashboard: "squall-layers"},
	{
		Name: "RestartBurst", When: "restart_burst", By: []string{"cluster"}, Severity: string(Page),
		KeepFiringFor: keepFiring, Dashboard: "squall-restarts",
	},
	{
		// Of a fleet alone: who is absent detects for itself meanwhile, so that nobody is to be woken.
		Name: "SquallBlind", When: "nodes_absent", By: []string{"cluster"}, Severity: string(Warning), For: time.Minute,
		KeepFiringFor: keepFiring, Dashboard: "squall-pipeline",
	},
}

// ShippedRules returns the rules that hold without configuration.
func ShippedRules() []Rule { return slices.Clone(shipped) }

// MergeRules adds configured rules to the shipped ones: the same name replaces, a disabled one removes. The
// order is that of the shipped rules, then that of the configuration.
func MergeRules(configured []Rule) []Rule {
	return slices.DeleteFunc(AllRules(configured), func(r Rule) bool { return r.Disabled })
}

// AllRules is MergeRules with those that are disabled, and with the labels that each is joined by.
func AllRules(configured []Rule) []Rule {
	merged := ShippedRules()
	for _, r := range configured {
		i := slices.IndexFunc(merged, func(m Rule) bool { return m.Name == r.Name })
		switch {
		case i >= 0:
			merged[i] = r
		default:
			merged = append(merged, r)
		}
	}
	for i := range merged {
		if merged[i].By == nil {
			merged[i].By = []string{"site"}
		}
	}
	return merged
}

// CheckRules reports the first fault of the configured rules, naming the rule and the place in its expression.
func CheckRules(configured []Rule, detectorNames []string) error {
	_, err := compileRules(configured, detectorNames)
	return err
}

// rule is a Rule that was checked.
type rule struct {
	Rule
	when, while *expression
	severity    func(found map[string]*detectors.Detection) (Severity, error)
	templates   []annotation
	site        string   // the one that has this rule instead of the general one; "": this is the general one
	except      []string // sites that have another instead, or none
	reads       []string // the detectors of when, then of while, in the order in which they are named
}

func compileRules(configured []Rule, known []string) ([]*rule, error) {
	seen := map[string]bool{}
	for _, r := range configured {
		if seen[r.Name] {
			return nil, fmt.Errorf("rule %q: there are two of this name", r.Name)
		}
		seen[r.Name] = true
		if r.Disabled && !slices.ContainsFunc(shipped, func(s Rule) bool { return s.Name == r.Name }) && r.When == "" {
			return nil, fmt.Errorf("rule %q: disabled, but no shipped rule has this name", r.Name)
		}
	}
	var rules []*rule
	for _, r := range MergeRules(configured) {
		c, err := compileRule(r, known)
		if err != nil {
			return nil, fmt.Errorf("rule %q: %w", r.Name, err)
		}
		rules = append(rules, c)
	}
	return rules, nil
}

// labelName is what Alertmanager of every version accepts.
var labelName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

var ruleName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_ .:-]{0,99}$`)

func compileRule(r Rule, known []string) (*rule, error) {
	if err := checkPlain(&r); err != nil {
		return nil, err
	}
	r.By = slices.Sorted(slices.Values(r.By))
	c := &rule{Rule: r}
	var err error
	if c.when, err = compile(r.When, known, reflect.Bool); err != nil {
		return nil, fmt.Errorf("when: %w", err)
	}
	c.while = c.when
	if r.While != "" {
		if c.while, err = compile(r.While, known, reflect.Bool); err != nil {
			return nil, fmt.Errorf("while: %w", err)
		}
	}
	for _, e := range []*expression{c.when, c.while} {
		if on, err := e.holds(nil); err != nil || on {
			return nil, fmt.Errorf("when and while must be false while every detector is silent")
		}
		for _, name := range e.reads {
			if !slices.Contains(c.reads, name) {
				c.reads = append(c.reads, name)
			}
		}
	}
	if err := checkPlaces(r.By, "when", r.When, c.when.reads); err != nil {
		return nil, err
	}
	if c.severity, err = compileSeverity(r.Severity, known); err != nil {
		return nil, fmt.Errorf("severity: %w", err)
	}
	if c.templates, err = compileAnnotations(r.Annotations); err != nil {
		return nil, err
	}
	return c, nil
}

// checkPlain checks what needs no compiling.
func checkPlain(r *Rule) error {
	if !ruleName.MatchString(r.Name) {
		return fmt.Errorf("name must be letters, digits and _ . : - only, beginning with a letter")
	}
	if r.When == "" {
		return fmt.Errorf("when is missing")
	}
	if r.Severity == "" {
		return fmt.Errorf("severity is missing: page, warning or info")
	}
	if r.Within < 0 || r.For < 0 || r.KeepFiringFor < 0 {
		return fmt.Errorf("within, for and keep_firing_for must not be negative")
	}
	for i, name := range r.By {
		if !labelName.MatchString(name) || slices.Contains(r.By[:i], name) {
			return fmt.Errorf("by: %q is not a label's name or is there twice", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Labels)) {
		if !labelName.MatchString(name) || name == "alertname" || name == "severity" || slices.Contains(r.By, name) {
			return fmt.Errorf("labels: %q cannot be set", name)
		}
	}
	return nil
}

// compileSeverity takes a word, or an expression in which every result is such a word.
func compileSeverity(text string, known []string) (func(map[string]*detectors.Detection) (Severity, error), error) {
	if s := Severity(text); s.rank() > 0 {
		return func(map[string]*detectors.Detection) (Severity, error) { return s, nil }, nil
	}
	e, err := compile(text, known, reflect.String)
	if err != nil {
		return nil, fmt.Errorf("must be page, warning, info or an expression that gives one of them: %w", err)
	}
	tree, err := parser.Parse(text)
	if err != nil {
		return nil, positioned(text, err)
	}
	if !resultsAreSeverities(tree.Node) {
		return nil, fmt.Errorf(`every result must be "page", "warning" or "info"`)
	}
	return func(found map[string]*detectors.Detection) (Severity, error) {
		v, err := e.run(found)
		if err != nil {
			return Warning, err
		}
		s, _ := v.(string)
		return Severity(s), nil
	}, nil
}

func resultsAreSeverities(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.ConditionalNode:
		return resultsAreSeverities(n.Exp1) && resultsAreSeverities(n.Exp2)
	case *ast.StringNode:
		return Severity(n.Value).rank() > 0
	}
	return false
}

// rank orders severities; 0 is none.
func (s Severity) rank() int { return 1 + slices.Index([]Severity{Info, Warning, Page}, s) }
