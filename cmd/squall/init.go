package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

const (
	configPath = "/etc/squall/squall.yaml"
	// shippedConfig is what the packages install as configPath: as long as that is the same, nobody has changed it.
	shippedConfig = "/usr/share/squall/squall.yaml"
)

// initOptions are the flags of `squall init`.
type initOptions struct {
	output, root, nginxConf string
	loki, alertmanager      string
	force                   bool
}

// newInitCommand makes `squall init`.
func newInitCommand() *cobra.Command {
	var o initOptions
	cmd := &cobra.Command{
		Use:   "init",
		Short: "look at this machine and write a configuration for it",
		Long: "init asks nginx for its configuration (nginx -T), looks for logs in /var/log and /var/log/pods, for units in\n" +
			"the journal, for php-fpm's pools, for this machine's addresses, and for Loki and Alertmanager on their usual\n" +
			"ports. It writes a configuration with what it found, commented, and with what it could not find. It changes\n" +
			"nothing else, and overwrites no file that somebody changed.\n\n" +
			"Run it as root, so that it sees what the service will be allowed to see, and more.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s := &surveyor{root: o.root, nginxConf: o.nginxConf, now: time.Now(), survey: survey{loki: o.loki, alerts: o.alertmanager}}
			text, err := o.write(cmd.OutOrStdout(), s.look(cmd.Context()).config())
			if err != nil || o.output == "-" {
				return err
			}
			tellInit(cmd.ErrOrStderr(), o.output, s.survey, text)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.output, "output", configPath, "the `FILE` to write; - for standard output")
	f.BoolVar(&o.force, "force", false, "overwrite a file that was changed")
	f.StringVar(&o.root, "root", "/", "look at the files of another machine, which are in `FOLDER`")
	f.StringVar(&o.nginxConf, "nginx-conf", "", "nginx's configuration `FILE`, when it is not where nginx has it")
	f.StringVar(&o.loki, "loki", "", "`URL` of Loki")
	f.StringVar(&o.alertmanager, "alertmanager", "", "`URL` of Alertmanager")
	return cmd
}

// write puts the configuration where it belongs, after squall itself has read it.
func (o *initOptions) write(stdout io.Writer, text []byte) ([]byte, error) {
	c, faults, err := parseConfig(o.output, text, os.LookupEnv)
	if err == nil {
		err = append(faults, c.unechoed(faults, c.validate(families()))...).sorted()
	}
	if err != nil {
		return nil, fmt.Errorf("what was found makes no configuration: %w", err)
	}
	if o.output == "-" {
		_, err := stdout.Write(text)
		return text, err
	}
	is, err := os.ReadFile(o.output)
	switch {
	case errors.Is(err, os.ErrNotExist):
		if err := os.MkdirAll(filepath.Dir(o.output), 0o755); err != nil { //nolint:gosec // a folder of /etc
			return nil, err
		}
	case err != nil:
		return nil, err
	case !o.force:
		if shipped, err := os.ReadFile(shippedConfig); err != nil || !bytes.Equal(is, shipped) {
			return nil, usageError(fmt.Errorf("%s is there, and somebody wrote it: --force overwrites it, --output - shows what would be written", o.output))
		}
	}
	return text, replaceFile(o.output, text)
}

// replaceFile writes a file anew under its name, whole or not at all, with the owner and the rights of the one before.
func replaceFile(path string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".squall-init-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone when it was renamed
	_, err = f.Write(text)
	mode := os.FileMode(0o640)
	if info, statErr := os.Stat(path); statErr == nil {
		mode = info.Mode().Perm()
		if st, ok := info.Sys().(*syscall.Stat_t); ok && os.Getuid() == 0 {
			err = errors.Join(err, f.Chown(int(st.Uid), int(st.Gid)))
		}
	}
	if err := errors.Join(err, f.Chmod(mode), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// tellInit says what was done and what comes next.
func tellInit(out io.Writer, path string, s survey, text []byte) {
	fmt.Fprintf(out, "%s is written; sources: %d, sites: %d, lines: %d.\n", path, len(s.sources), len(s.sites), bytes.Count(text, []byte{'\n'}))
	for _, m := range s.missing {
		fmt.Fprintf(out, "not found out: %s\n", m)
	}
	fmt.Fprintf(out, "Next: read it, then squall doctor --config %s\n", path)
}

// yamlQuoted quotes a text for YAML, and for the configuration's own ${…}.
func yamlQuoted(s string) string {
	return "'" + strings.ReplaceAll(escape(s), "'", "''") + "'"
}

// config writes the configuration that the survey comes to.
func (s survey) config() []byte {
	var b bytes.Buffer
	b.WriteString("# yaml-language-server: $schema=/usr/share/squall/squall.schema.json\n" +
		"#\n# Written by squall init, from what it found on this machine. Every key: man 5 squall.yaml, or squall check --schema.\n" +
		"# Try it: squall doctor.\n")
	if len(s.missing) > 0 {
		b.WriteString("#\n# What could not be found out:\n")
		for _, m := range s.missing {
			comment(&b, "", "- "+m)
		}
	}
	b.WriteString("\nsources:\n")
	if len(s.sources) == 0 {
		comment(&b, "  ", "No log was found. This waits for nginx's; other sources: container, journal, syslog, kubernetes, s3.")
		b.WriteString("  - {name: nginx-access, type: file, paths: ['/var/log/nginx/*access*.log']}\n")
	}
	if s.servers() > 1 {
		comment(&b, "  ", "Several servers log here. Where one passes requests on to another, delete one of the two: each request would")
		comment(&b, "  ", "count twice.")
	}
	for _, src := range s.sources {
		s.writeSource(&b, src)
	}
	for _, l := range s.skipped {
		comment(&b, "  ", l)
	}
	s.writeOwn(&b)
	s.writeSites(&b)
	s.writeOutputs(&b)
	return b.Bytes()
}

// servers is how many kinds of server have access logs among the sources.
func (s survey) servers() (n int) {
	for _, word := range []string{"nginx", "haproxy", "apache2", "httpd", "caddy", "traefik", "envoy"} {
		if slices.ContainsFunc(s.sources, func(src surveyedSource) bool {
			return strings.HasPrefix(src.name, word) && src.kind == "file" && !strings.Contains(src.name, "error")
		}) {
			n++
		}
	}
	return n
}

func (s survey) writeSource(b *bytes.Buffer, src surveyedSource) {
	for _, l := range src.about {
		comment(b, "  ", l)
	}
	fmt.Fprintf(b, "  - name: %s\n    type: %s\n", src.name, src.kind)
	if len(src.paths) > 0 {
		fmt.Fprintf(b, "    paths: %s\n", yamlList(src.paths))
	}
	if len(src.exclude) > 0 {
		fmt.Fprintf(b, "    exclude: %s\n", yamlList(src.exclude))
	}
	for _, f := range src.fields {
		fmt.Fprintf(b, "    %s\n", f)
	}
}

// yamlList quotes texts as a list of YAML's.
func yamlList(texts []string) string {
	quoted := make([]string, len(texts))
	for i, text := range texts {
		quoted[i] = yamlQuoted(text)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// comment writes a line of comment; what was found in logs and configurations may hold anything.
func comment(b *bytes.Buffer, indent, text string) {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0x85 || r == 0x2028 || r == 0x2029 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	fmt.Fprintf(b, "%s# %s\n", indent, text)
}

func (s survey) writeOwn(b *bytes.Buffer) {
	b.WriteString("\n# This is us: never advised to be blocked. Behind a NAT the world sees us with the NAT's address, which no interface\n" +
		"# tells: write it here.\n")
	if len(s.own) > 0 {
		comment(b, "", "This machine's own, by interfaces: "+strings.Join(s.own, " "))
	}
	b.WriteString("own:\n  interfaces: true\n  addresses: []\n" +
		"\n# Whose X-Forwarded-For is believed: the balancers and the CDN in front of this machine.\ntrusted_proxies: []\n")
}

func (s survey) writeSites(b *bytes.Buffer) {
	b.WriteString("\n# How many workers answer requests, over all machines: without it squall cannot tell that they are used up.\n")
	for _, p := range s.pools {
		comment(b, "", "found: "+p)
	}
	fmt.Fprintf(b, "site_defaults:\n  pool: {workers: %d, reclaim_timeout: 60s}\n", s.workers)
	if len(s.sites) == 0 {
		b.WriteString("\n# A site is a host unless it is listed here, with all its hosts.\nsites: []\n")
		return
	}
	b.WriteString("\n# From nginx's server_name.\nsites:\n")
	for _, hosts := range s.sites {
		fmt.Fprintf(b, "  - {name: %s, hosts: %s}\n", yamlQuoted(hosts[0]), yamlList(hosts))
	}
}

func (s survey) writeOutputs(b *bytes.Buffer) {
	if s.loki == "" {
		b.WriteString("\n# No Loki was found on this machine: lines are kept in the spool for 72h, where squall replay finds them.\nloki:\n  url: ''      # http://loki:3100\n")
	} else {
		fmt.Fprintf(b, "\nloki:\n  url: %s\n", yamlQuoted(s.loki))
	}
	b.WriteString("\nnotify:\n  - {type: stdout}     # to the journal: journalctl -u squall\n")
	if s.alerts == "" {
		b.WriteString("# No Alertmanager was found on this machine: nobody is paged until one of these is there. A secret is a file in\n" +
			"# /etc/squall/credentials.\n" +
			"#  - {type: alertmanager, urls: ['http://alertmanager:9093']}\n#  - {type: webhook, url: '${credential:pager}'}\n")
		return
	}
	fmt.Fprintf(b, "  - {type: alertmanager, urls: [%s]}\n", yamlQuoted(s.alerts))
}
