package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/squall-sre/squall/cmd/squall/simulate"
	"github.com/squall-sre/squall/pipeline"
)

// newSimulateCommand makes `squall simulate`: logs of a storm that follow from a queue.
func newSimulateCommand() *cobra.Command {
	var o simulate.Options
	var out, truth, start, zone string
	cmd := &cobra.Command{
		Use:   "simulate SCENARIO [flags]",
		Short: "write the log of a simulated storm or of a quiet day",
		Long: "simulate runs requests through a pool of workers with clients that give up, and writes the log that a\n" +
			"balancer would have written. The same flags give the same bytes.\n\nScenarios: " +
			strings.Join(simulate.Names(), ", ") + "\nFormats: " + strings.Join(simulate.Formats(), ", "),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError(fmt.Errorf("simulate needs one SCENARIO of %s", strings.Join(simulate.Names(), ", ")))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if o.Scenario, err = simulate.Named(args[0]); err != nil {
				return usageError(err)
			}
			if o.Zone, err = pipeline.ParseZone(zone); err != nil {
				return usageError(err)
			}
			if start != "" {
				if o.Start, err = time.Parse(time.RFC3339, start); err != nil {
					return usageError(fmt.Errorf("--start: %w", err))
				}
			}
			f := cmd.Flags()
			switch {
			case f.Changed("rate") && !(o.Rate > 0 && o.Rate <= 1e6):
				return usageError(fmt.Errorf("--rate: %v is no factor over 0", o.Rate))
			case f.Changed("workers") && o.Pool <= 0:
				return usageError(fmt.Errorf("--workers: %d workers are no pool", o.Pool))
			case f.Changed("patience") && o.Patience <= 0:
				return usageError(fmt.Errorf("--patience: %s is no time to wait", o.Patience))
			}
			return writeSimulation(cmd, o, out, truth)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Format, "format", "nginx_extended", "`FORMAT` of the lines")
	f.Uint64Var(&o.Seed, "seed", 1, "`NUMBER` that everything random follows from")
	f.StringVarP(&out, "output", "o", "-", "`FILE` for the log")
	f.StringVar(&truth, "truth", "", "`FILE` for what really happened, as JSON (- for standard error)")
	f.StringVar(&o.Host, "host", "", "`NAME` of the site")
	f.StringVar(&o.Path, "path", "", "`TEMPLATE` of the storm's path")
	f.IntVar(&o.Pool, "workers", 0, "workers of the `POOL`")
	f.Float64Var(&o.Rate, "rate", 0, "`FACTOR` on all arrivals")
	f.DurationVar(&o.Patience, "patience", 0, "how long a storm's clients wait")
	f.StringVar(&start, "start", "", "`TIME` at which it begins, RFC 3339")
	f.StringVar(&zone, "timezone", "", "`ZONE` of the log's times")
	return cmd
}

func writeSimulation(cmd *cobra.Command, o simulate.Options, out, truth string) (err error) {
	log := cmd.OutOrStdout()
	if out != "-" {
		f, err2 := os.Create(out)
		if err2 != nil {
			return err2
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		log = f
	}
	t, err := simulate.Run(cmd.Context(), o, log)
	if err != nil {
		return usageError(err)
	}
	if truth == "" {
		return nil
	}
	told := cmd.ErrOrStderr()
	if truth != "-" {
		f, err2 := os.Create(truth)
		if err2 != nil {
			return err2
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		told = f
	}
	e := json.NewEncoder(told)
	e.SetIndent("", "  ")
	return e.Encode(t)
}
