// Command squall tails the logs of balancers and ingresses, detects the storms that take websites down while
// every dashboard stays green, ships the lines to Loki, and pages through Alertmanager when clients are hurt.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/prometheus/common/version"
	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newRootCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "squall:", err)
	}
	os.Exit(exitCode(err))
}

// newRootCommand is the family of commands.
func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "squall",
		Short:         "detect the storms that take websites down while every dashboard stays green",
		Version:       version.Info(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError(err) })
	root.AddCommand(
		newRunCommand(),
		newAggregateCommand(),
		newReplayCommand(),
		newParseCommand(),
		newExplainCommand(),
		newIncidentsCommand(),
		newAnnotateCommand(),
		newCheckCommand(families()),
		newTuneCommand(),
		newSimulateCommand(),
		newDemoCommand(),
		newInitCommand(),
		newDoctorCommand(),
		newManCommand(),
	)
	for _, c := range append(root.Commands(), root) {
		if args := c.Args; args != nil {
			c.Args = func(cmd *cobra.Command, given []string) error { return usageIf(args(cmd, given)) }
		}
	}
	return root
}
