package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/prometheus/common/version"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// newManCommand makes `squall man`, which the packages are built with: it is not shown.
func newManCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "write the manual's pages and the shells' completions into a folder",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for name, text := range manual(cmd.Root()) {
				if err := writeUnder(filepath.Join(args[0], "man"), name, text); err != nil {
					return err
				}
			}
			return writeCompletions(cmd.Root(), args[0])
		},
	}
}

func writeUnder(dir, name string, text []byte) error {
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // it is packed for everybody to read
		return err
	}
	return os.WriteFile(path, text, 0o644) //nolint:gosec // it is packed for everybody to read
}

func writeCompletions(root *cobra.Command, dir string) error {
	var bash, zsh, fish bytes.Buffer
	if err := root.GenBashCompletionV2(&bash, true); err != nil {
		return err
	}
	if err := root.GenZshCompletion(&zsh); err != nil {
		return err
	}
	if err := root.GenFishCompletion(&fish, true); err != nil {
		return err
	}
	for shell, text := range map[string][]byte{"bash": bash.Bytes(), "zsh": zsh.Bytes(), "fish": fish.Bytes()} {
		if err := writeUnder(dir, "completion/squall."+shell, text); err != nil {
			return err
		}
	}
	return nil
}

// manual gives the pages by their paths: squall(1), one for each command, and squall.yaml(5).
func manual(root *cobra.Command) map[string][]byte {
	pages := map[string][]byte{"man1/squall.1": commandPage(root), "man5/squall.yaml.5": configurationPage()}
	for _, c := range shownCommands(root) {
		pages["man1/squall-"+c.Name()+".1"] = commandPage(c)
	}
	return pages
}

// shownCommands are those of squall itself, sorted, without cobra's own.
func shownCommands(root *cobra.Command) (shown []*cobra.Command) {
	for _, c := range root.Commands() {
		if !c.Hidden && c.Name() != "help" && c.Name() != "completion" {
			shown = append(shown, c)
		}
	}
	return shown
}

// A manPage writes roff, in the macros of man(7).
type manPage struct{ bytes.Buffer }

func newManPage(name, section, about string) *manPage {
	p := &manPage{}
	fmt.Fprintf(p, ".TH %s %s \"\" \"squall %s\" \"squall\"\n", strings.ToUpper(name), section, roff(version.Version))
	p.section("NAME")
	fmt.Fprintf(p, "%s \\- %s\n", roff(name), roff(about))
	return p
}

func (p *manPage) section(title string) { fmt.Fprintf(p, ".SH %s\n", title) }

// tagged is a term with what it means.
func (p *manPage) tagged(term, text string) {
	fmt.Fprintf(p, ".TP\n\\fB%s\\fR\n%s\n", roff(term), roff(text))
}

// roff escapes a text: backslashes, hyphens, and lines that begin like a request.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}

func commandPage(c *cobra.Command) []byte {
	name := strings.ReplaceAll(c.CommandPath(), " ", "-")
	p := newManPage(name, "1", c.Short)
	p.section("SYNOPSIS")
	if c.HasParent() {
		for i, use := range strings.Split(c.Use, " | ") {
			if i > 0 {
				p.WriteString(".br\n")
			}
			fmt.Fprintf(p, "\\fBsquall\\fR %s\n", roff(use))
		}
	} else {
		p.WriteString("\\fBsquall\\fR \\fICOMMAND\\fR\n")
	}
	if c.Long != "" {
		p.section("DESCRIPTION")
		for i, paragraph := range strings.Split(c.Long, "\n\n") {
			if i > 0 {
				p.WriteString(".PP\n")
			}
			fmt.Fprintln(p, roff(strings.ReplaceAll(paragraph, "\n", " ")))
		}
	}
	if !c.HasParent() {
		p.section("COMMANDS")
		for _, sub := range shownCommands(c) {
			p.tagged("squall-"+sub.Name()+"(1)", sub.Short)
		}
	}
	p.section("OPTIONS")
	c.InitDefaultHelpFlag()
	c.LocalFlags().VisitAll(func(f *pflag.Flag) { p.flag(f) })
	p.section("EXIT STATUS")
	for _, e := range exitCodes {
		p.tagged(fmt.Sprint(e.code), e.meaning)
	}
	p.section("FILES")
	p.tagged("/etc/squall/squall.yaml", "the configuration of the service, see squall.yaml(5)")
	p.tagged(credentialFolder, "secrets, one a file, which the configuration names as ${credential:NAME}")
	p.tagged("/var/lib/squall", "what was read and not yet shipped, positions, what is firing")
	p.section("SEE ALSO")
	p.WriteString(roff("squall(1), squall.yaml(5), journalctl(1), https://github.com/squall-sre/squall") + "\n")
	return p.Bytes()
}

func (p *manPage) flag(f *pflag.Flag) {
	value, usage := pflag.UnquoteUsage(f)
	term := "--" + f.Name
	if f.Shorthand != "" {
		term = "-" + f.Shorthand + ", " + term
	}
	if value != "" {
		term += " " + value
	}
	if plain := f.DefValue; plain != "" && plain != "false" && plain != "[]" && plain != "0" && plain != "0s" {
		usage += " (default " + plain + ")"
	}
	p.tagged(term, usage)
}
