package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// A position is a place in a configuration file, counted from 1; the zero position is "nowhere in a file".
type position struct {
	file      string
	line, col int
}

// String gives file:line:column, the form that editors jump to.
func (p position) String() string {
	if p.line == 0 {
		return p.file
	}
	return fmt.Sprintf("%s:%d:%d", p.file, p.line, p.col)
}

// A configError is one fault of a configuration file at its place. It never holds an expanded value.
type configError struct {
	at  position
	msg string
}

// Error gives `file:line:column: what is wrong`.
func (e configError) Error() string {
	if e.at.file == "" {
		return e.msg
	}
	return e.at.String() + ": " + e.msg
}

// configErrors are all the faults that were found at once, in the order of the file.
type configErrors []configError

// Error gives one line for each fault.
func (e configErrors) Error() string {
	lines := make([]string, len(e))
	for i, x := range e {
		lines[i] = x.Error()
	}
	return strings.Join(lines, "\n")
}

func (e *configErrors) add(at position, format string, args ...any) {
	*e = append(*e, configError{at, fmt.Sprintf(format, args...)})
}

// take adds another error: faults with a place keep it, any other error is put at the given one.
func (e *configErrors) take(at position, what string, err error) {
	var list configErrors
	var one configError
	switch {
	case err == nil:
	case errors.As(err, &list):
		*e = append(*e, list...)
	case errors.As(err, &one):
		*e = append(*e, one)
	case what == "" || strings.HasPrefix(err.Error(), what):
		e.add(at, "%v", err)
	default:
		e.add(at, "%s: %v", what, err)
	}
}

// sorted returns the faults in the order of the file, each once, or nil when there are none.
func (e configErrors) sorted() error {
	if len(e) == 0 {
		return nil
	}
	out := slices.Clone(e)
	slices.SortStableFunc(out, func(a, b configError) int {
		if a.at.line != b.at.line {
			return a.at.line - b.at.line
		}
		return a.at.col - b.at.col
	})
	return slices.Compact(out)
}

// nearest gives the candidate that a misspelt word most probably meant, "" when none is near.
func nearest(word string, candidates []string) string {
	best, bestDistance := "", 3
	if len(word) <= 4 {
		bestDistance = 2
	}
	for _, c := range candidates {
		if d := editDistance(strings.ToLower(word), c); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// editDistance is Levenshtein's, with a swap of neighbours counted as one step (optimal string alignment).
func editDistance(a, b string) int {
	older, row := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		next := make([]int, len(b)+1)
		next[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			next[j] = min(row[j]+1, next[j-1]+1, row[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				next[j] = min(next[j], older[j-2]+1)
			}
		}
		older, row = row, next
	}
	return row[len(b)]
}

// unknown says that a word is none of the candidates, and which one it may have meant.
func unknown(what, word string, candidates []string) string {
	if near := nearest(word, candidates); near != "" {
		return fmt.Sprintf("unknown %s %q: did you mean %q?", what, word, near)
	}
	sorted := slices.Compact(slices.Sorted(slices.Values(candidates))) // a kind may repeat what all kinds have
	return fmt.Sprintf("unknown %s %q: known are %s", what, word, strings.Join(sorted, ", "))
}
