package main

import "errors"

// Exit codes: 0 is done.
const (
	exitFailed = 1
	exitUsage  = 2 // wrong arguments or configuration
	exitFailOn = 3 // --fail-on was met
)

// exitCodes is what each of them means, for people.
var exitCodes = []struct {
	code    int
	meaning string
}{
	{0, "done"},
	{exitFailed, "failed"},
	{exitUsage, "wrong arguments, or a fault in the configuration"},
	{exitFailOn, "--fail-on was met: an alert of that severity fired in a replay"},
}

// errNoConfig is for commands that need a file.
var errNoConfig = errors.New("which configuration? Write --config FILE")

// An exitError carries the code to leave with from a command to main.
type exitError struct {
	code int
	err  error
}

// Error gives the error's own text.
func (e *exitError) Error() string { return e.err.Error() }

// Unwrap gives the error.
func (e *exitError) Unwrap() error { return e.err }

// usageError marks an error as the user's.
func usageError(err error) error { return &exitError{exitUsage, err} }

// exitCode is what main leaves with.
func exitCode(err error) int {
	var e *exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return e.code
	}
	return exitFailed
}
