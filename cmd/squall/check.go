package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

// newCheckCommand makes `squall check`: it validates a configuration and prints what is in effect.
func newCheckCommand(families Families) *cobra.Command {
	var path, only string
	var tests []string
	var schema bool
	cmd := &cobra.Command{
		Use:   "check --config FILE | check --test FILE... | check --schema",
		Short: "validate a configuration and print it with every default filled in, or run rule tests",
		Long: "check reads a configuration, reports every fault as file:line:column, and prints the\n" +
			"configuration in effect to standard output, with secrets left out. What squall does with it is told in\n" +
			"sentences on standard error, with what a log_format leaves out that detection needs.\n\n" +
			"With --test it runs unit tests of rules, as `promtool test rules` does: each test replays a simulated or\n" +
			"recorded input and says which alerts must come of it, and which must not. A FILE may be a glob or a\n" +
			"directory. It exits with 1 when a test fails, with 2 when a file has a fault.",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(tests) > 0 {
				return nil
			}
			return cobra.NoArgs(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(tests) > 0 {
				r := &ruleTester{config: path, out: cmd.OutOrStdout(), err: cmd.ErrOrStderr()}
				return r.start(cmd.Context(), only, append(tests, args...))
			}
			if schema {
				_, err := cmd.OutOrStdout().Write(configSchema)
				return err
			}
			if path == "" {
				return usageError(errNoConfig)
			}
			text, words, warnings, err := checkConfig(path, families)
			if err != nil {
				return usageError(err)
			}
			fmt.Fprintln(cmd.ErrOrStderr(), path+" is sound. With it squall")
			for _, w := range words {
				fmt.Fprintln(cmd.ErrOrStderr(), "  "+w)
			}
			for _, w := range warnings {
				fmt.Fprintln(cmd.ErrOrStderr(), w)
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "the configuration `FILE`; with --test: for tests that name none")
	cmd.Flags().StringArrayVar(&tests, "test", nil, "run the rule tests of `FILE`; more may follow")
	cmd.Flags().BoolVar(&schema, "schema", false, "print the JSON Schema of the configuration, for editors")
	cmd.Flags().StringVar(&only, "run", "", "with --test: only the tests whose names match this `REGEXP`")
	return cmd
}

// checkConfig gives the effective configuration of a file, what squall does with it in words, and what in it is no
// fault and yet costs detection.
func checkConfig(path string, families Families) (text []byte, words, warnings []string, err error) {
	c, err := LoadValid(path, os.LookupEnv, families)
	if err != nil {
		return nil, nil, nil, err
	}
	if err := c.RequireSources(); err != nil && !c.Fleet.on() {
		return nil, nil, nil, err
	}
	for i := range c.Sources {
		s := &c.Sources[i]
		choice, err := chooseFormat(s.Format.Type, s.Format.Decode)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("source %s: %w", s.Name, err)
		}
		for _, lack := range choice.lacks() {
			warnings = append(warnings, fmt.Sprintf("warning: source %s: log_format: %s", s.Name, lack))
		}
	}
	if text, err = c.Effective(); err != nil {
		return nil, nil, nil, fmt.Errorf("print the configuration: %w", err)
	}
	for _, w := range c.sourceWarnings() {
		warnings = append(warnings, "warning: "+w)
	}
	return text, c.inWords(), warnings, nil
}
