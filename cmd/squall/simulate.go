package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/squall-sre/squall/cmd/squall/simulate"
	"github.com/squall-sre/squall/pipeline"
)

// newSimulateCommand makes `squall simulate`: logs of a storm that follow from a queue.
func newSimulateCommand() *cobra.Command {
	var o simulate.Options
	var out, dir, truth, start, zone string
	var days int
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
			case f.Changed("days") && (args[0] != "quiet" || days < 1 || days > 366):
				return usageError(fmt.Errorf("--days: from 1 to 366 of them, of the scenario quiet"))
			case f.Changed("rate") && !(o.Rate > 0 && o.Rate <= 1e6):
				return usageError(fmt.Errorf("--rate: %v is no factor over 0", o.Rate))
			case f.Changed("workers") && o.Pool <= 0:
				return usageError(fmt.Errorf("--workers: %d workers are no pool", o.Pool))
			case f.Changed("patience") && o.Patience <= 0:
				return usageError(fmt.Errorf("--patience: %s is no time to wait", o.Patience))
			}
			if f.Changed("days") {
				o.Scenario = simulate.Quiet(days)
				o.Scenario.Name = args[0]
			}
			if f.Changed("output") && dir != "" {
				return usageError(errors.New("--output takes one log and --dir all of them: which is it?"))
			}
			return writeSimulation(cmd, o, simulationFiles{out: out, dir: dir, truth: truth})
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Format, "format", "nginx_extended", "`FORMAT` of the lines")
	f.Uint64Var(&o.Seed, "seed", 1, "`NUMBER` that everything random follows from")
	f.StringVarP(&out, "output", "o", "-", "`FILE` for the scenario's first log")
	f.StringVar(&dir, "dir", "", "`FOLDER` for all logs of the scenario, by their names")
	f.StringVar(&truth, "truth", "", "`FILE` for what really happened, as JSON (- for standard error)")
	f.StringVar(&o.Host, "host", "", "`NAME` of the site")
	f.StringVar(&o.Path, "path", "", "`TEMPLATE` of the storm's path")
	f.IntVar(&o.Pool, "workers", 0, "workers of the `POOL`")
	f.Float64Var(&o.Rate, "rate", 0, "`FACTOR` on all arrivals")
	f.DurationVar(&o.Patience, "patience", 0, "how long a storm's clients wait")
	f.IntVar(&days, "days", 30, "how many `DAYS` the scenario quiet lasts")
	f.StringVar(&start, "start", "", "`TIME` at which it begins, RFC 3339")
	f.StringVar(&zone, "timezone", "", "`ZONE` of the log's times")
	return cmd
}

// simulationFiles is where a simulation is written.
type simulationFiles struct{ out, dir, truth string }

func writeSimulation(cmd *cobra.Command, o simulate.Options, to simulationFiles) error {
	t, err := to.logs(cmd, o)
	if err != nil {
		return usageError(err)
	}
	if to.dir == "" && len(t.Logs) > 1 {
		fmt.Fprintf(cmd.ErrOrStderr(), "scenario %s has %d logs: only %s was written; --dir FOLDER writes all\n", t.Scenario, len(t.Logs), t.Logs[0].File)
	}
	if to.truth == "" {
		return nil
	}
	told := cmd.ErrOrStderr()
	if to.truth != "-" {
		f, err := os.Create(to.truth)
		if err != nil {
			return err
		}
		return errors.Join(encodeTruth(f, t), f.Close())
	}
	return encodeTruth(told, t)
}

func encodeTruth(w io.Writer, t *simulate.Truth) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(t)
}

// logs simulates and writes the lines.
func (to *simulationFiles) logs(cmd *cobra.Command, o simulate.Options) (*simulate.Truth, error) {
	if to.dir != "" {
		if err := os.MkdirAll(to.dir, 0o755); err != nil {
			return nil, err
		}
		return simulate.RunFiles(cmd.Context(), o, func(name string) (io.WriteCloser, error) {
			return os.Create(filepath.Join(to.dir, name))
		})
	}
	if to.out == "-" {
		return simulate.Run(cmd.Context(), o, cmd.OutOrStdout())
	}
	f, err := os.Create(to.out)
	if err != nil {
		return nil, err
	}
	t, err := simulate.Run(cmd.Context(), o, f)
	return t, errors.Join(err, f.Close())
}
