package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/fleet"
)

// FleetConfig turns on detection over many nodes: each of them tells a NATS JetStream stream of every pane that it
// counted, and `squall aggregate` adds them up.
type FleetConfig struct {
	NATS    string `yaml:"nats"`    // addresses, comma-separated; empty: this node alone
	Cluster string `yaml:"cluster"` // its name in labels and on the stream
	Node    string `yaml:"node"`    // default: the host's name

	CredentialsFile string `yaml:"credentials_file"` // a JWT and its key (.creds)
	NKeyFile        string `yaml:"nkey_file"`        // the seed of an NKey, in place of credentials
	CAFile          string `yaml:"ca_file"`
	CertFile        string `yaml:"cert_file"`
	KeyFile         string `yaml:"key_file"`

	// Of squall aggregate alone.
	Lateness time.Duration     `yaml:"lateness"`  // how long a pane waits for the nodes that have not told of it
	MaxAge   time.Duration     `yaml:"max_age"`   // how long the stream keeps panes
	MaxBytes pipeline.ByteSize `yaml:"max_bytes"` // of panes that the stream keeps; the oldest go first
	Replicas int               `yaml:"replicas"`  // servers that keep the stream; 0: 3 where fleet.server has two routes or more, else 1
	Embedded bool              `yaml:"embedded"`  // the aggregator is the NATS server, too
	Server   FleetServerConfig `yaml:"server"`    // its settings, where embedded
}

// FleetServerConfig is the NATS server that an aggregator embeds.
type FleetServerConfig struct {
	Listen        string            `yaml:"listen"`         // for the nodes
	ClusterListen string            `yaml:"cluster_listen"` // for the other aggregators' servers
	Routes        []string          `yaml:"routes"`         // theirs: nats-route://host:port
	CAFile        string            `yaml:"ca_file"`
	CertFile      string            `yaml:"cert_file"`
	KeyFile       string            `yaml:"key_file"`
	Nodes         map[string]string `yaml:"nodes"`       // the public NKey of each node; empty: whoever connects may publish
	Aggregators   []string          `yaml:"aggregators"` // public NKeys that may do everything
}

// name is what the process is called in its fleet.
func (f *FleetConfig) name() string {
	if f.Node != "" {
		return f.Node
	}
	host, _ := os.Hostname() // empty where it is not known
	return cmp.Or(host, "unknown")
}

// on tells whether there is a fleet.
func (f *FleetConfig) on() bool { return f.NATS != "" || f.Embedded }

// link is what a connection to the fleet is made of.
func (f *FleetConfig) link() fleet.Config {
	return fleet.Config{
		URL: f.NATS, Cluster: f.Cluster, Node: f.name(), Credentials: f.CredentialsFile, NKey: f.NKeyFile,
		CA: f.CAFile, Cert: f.CertFile, Key: f.KeyFile,
	}
}

// users are those who may connect to the embedded server.
func (s *FleetServerConfig) users() (users []fleet.User) {
	for _, node := range slices.Sorted(maps.Keys(s.Nodes)) {
		users = append(users, fleet.User{NKey: s.Nodes[node], Node: node})
	}
	for _, key := range s.Aggregators {
		users = append(users, fleet.User{NKey: key})
	}
	return users
}

// embedded is what the embedded server is made of.
func (c *Config) embedded() fleet.ServerConfig {
	own := &c.Fleet.Server
	return fleet.ServerConfig{
		Name: c.Fleet.name(), Listen: own.Listen, Dir: filepath.Join(c.Spool.Dir, "fleet"), ClusterListen: own.ClusterListen, Routes: own.Routes,
		CA: own.CAFile, Cert: own.CertFile, Key: own.KeyFile, Users: own.users(), Cluster: c.Fleet.Cluster,
	}
}

// The sections of a configuration that decide what is in a pane, and what is made of panes. Who shares them counts, or
// judges, alike.
var (
	paneSections  = []string{"pane", "own", "allowed", "trusted_proxies", "site_defaults", "sites"}
	judgeSections = []string{"pane", "site_defaults", "sites", "detectors", "rules", "suppress", "campaigns", "min_firing"}
)

// hash names what sections say: equal settings have equal names.
func (c *Config) hash(sections []string) string {
	effective := printer{}.config(c)
	effective = slices.DeleteFunc(effective, func(item yaml.MapItem) bool {
		name, _ := item.Key.(string)
		return !slices.Contains(sections, name)
	})
	text, err := yaml.Marshal(effective)
	if err != nil {
		return "unknown"
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// checkFleet finds what cannot be of the fleet's settings.
func (c *Config) checkFleet(errs *configErrors) {
	f := &c.Fleet
	urlOf(errs, c.root.place("fleet", "nats"), "fleet.nats", f.NATS, "nats", "tls", "ws", "wss")
	at := func(key string) position { return c.root.place("fleet", key) }
	if f.CredentialsFile != "" && f.NKeyFile != "" {
		errs.add(at("nkey_file"), "fleet.nkey_file and fleet.credentials_file are two ways to say who this is: keep one of them")
	}
	if (f.CertFile == "") != (f.KeyFile == "") {
		errs.add(at("cert_file"), "fleet.cert_file and fleet.key_file belong together")
	}
	if f.Lateness < c.Pane || f.Lateness > 10*time.Minute {
		errs.add(at("lateness"), "fleet.lateness is %s: write a pane (%s) to 10m", shortDuration(f.Lateness), shortDuration(c.Pane))
	}
	if f.MaxAge < time.Hour {
		errs.add(at("max_age"), "fleet.max_age is %s: what is looked at when an aggregator starts anew must be kept, 1h at least", shortDuration(f.MaxAge))
	}
	if f.MaxBytes < 16<<20 {
		errs.add(at("max_bytes"), "fleet.max_bytes is less than 16MiB: a pane of a busy node takes some hundred KiB")
	}
	if !slices.Contains([]int{0, 1, 3, 5}, f.Replicas) {
		errs.add(at("replicas"), "fleet.replicas is %d: write 1, 3 or 5, or nothing", f.Replicas)
	} else if f.Embedded && f.Replicas > 1 && len(f.Server.Routes) == 0 {
		errs.add(at("replicas"), "fleet.replicas is %d, and fleet.server has no routes to other servers: write 1, or nothing", f.Replicas)
	}
	if f.Embedded && f.Server.Listen == "" {
		errs.add(c.root.place("fleet", "server", "listen"), "fleet.server.listen is empty: with fleet.embedded the nodes connect there, as in 0.0.0.0:4222")
	}
	if own := c.embedded(); f.Embedded && f.Server.Listen != "" {
		if err := own.CheckWords(); err != nil {
			errs.add(c.root.place("fleet", "server"), "fleet.server: %s", err.Error())
		}
	}
	if f.Embedded && len(f.Server.users()) > 0 && f.NKeyFile == "" {
		errs.add(c.root.place("fleet", "server"), "fleet.server names the keys that may connect, and fleet.nkey_file is empty: this aggregator needs the seed of one of fleet.server.aggregators")
	}
	if !f.on() {
		return
	}
	if err := fleet.CheckNames(f.Cluster, f.name()); err != nil {
		errs.add(at("node"), "%s", strings.TrimPrefix(err.Error(), "fleet: "))
	}
}
