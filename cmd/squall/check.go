package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

// newCheckCommand makes `squall check`: it validates a configuration and prints what is in effect.
func newCheckCommand(families Families) *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "check --config FILE",
		Short: "validate a configuration and print it with every default filled in",
		Long: "check reads a configuration, reports every fault as file:line:column, and prints the\n" +
			"configuration in effect to standard output, with secrets left out.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if path == "" {
				return usageError(errNoConfig)
			}
			text, err := checkConfig(path, families)
			if err != nil {
				return usageError(err)
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "the configuration file")
	return cmd
}

// checkConfig gives the effective configuration of a file.
func checkConfig(path string, families Families) ([]byte, error) {
	c, err := LoadValid(path, os.LookupEnv, families)
	if err != nil {
		return nil, err
	}
	if err := c.RequireSources(); err != nil {
		return nil, err
	}
	text, err := c.Effective()
	if err != nil {
		return nil, fmt.Errorf("print the configuration: %w", err)
	}
	return text, nil
}
