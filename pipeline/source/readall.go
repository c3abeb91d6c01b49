package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/squall-sre/squall/pipeline"
)

// ReadAll reads r to its end in Blocks of at most 384 KiB. The last one is marked so. What cannot be read on
// ends the stream with a Skip and is returned as the error; emit's error ends it at once.
func ReadAll(ctx context.Context, stream *pipeline.Stream, r io.Reader, emit pipeline.Emit) error {
	return ReadPieces(ctx, stream, r, readSize, emit)
}

// ReadPieces is ReadAll that reads at most piece bytes at once: where many files are open at a time, their Blocks must be
// small. A longer line makes a longer Block all the same.
func ReadPieces(ctx context.Context, stream *pipeline.Stream, r io.Reader, piece int, emit pipeline.Emit) error {
	c := cutters.Get().(*cutter)
	defer func() { c.reset(nil, 0, nil); cutters.Put(c) }()
	c.reset(stream, 0, emit)
	err := readThrough(ctx, r, piece, c)
	var broken putError
	switch {
	case errors.As(err, &broken):
		return broken.error
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, io.EOF):
		return c.finish()
	}
	if broken := c.finish(unreadable(c)); broken != nil {
		return broken
	}
	return fmt.Errorf("read %s: %w", stream.Path, err)
}

// cutters are used again: where files are many and small their memory would cost more than their lines.
var cutters = sync.Pool{New: func() any { return newCutter() }}

// putError marks the error of emit among those of reading.
type putError struct{ error }

// Unwrap gives emit's error.
func (e putError) Unwrap() error { return e.error }

// readThrough reads r into c until an error, io.EOF at the end. Full reads make full Blocks.
func readThrough(ctx context.Context, r io.Reader, piece int, c *cutter) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		space := c.space()
		n, err := fill(r, space[:min(piece, len(space))])
		if broken := c.took(n); broken != nil {
			return putError{broken}
		}
		if err != nil {
			return err
		}
	}
}

// fill is io.ReadFull that leaves the reader's own error: an archive's unexpected end is none of ours.
func fill(r io.Reader, p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var m int
		m, err = r.Read(p[n:])
		n += m
	}
	return n, err
}

// Expand gives the files that the arguments of a command name: a file, a glob, a directory with all that is
// below it, or "-". Each file comes once, where it is first named; what one argument names is sorted.
func Expand(paths []string) ([]string, error) {
	var all []string
	named := map[string]bool{}
	for _, path := range paths {
		found, err := expandOne(path)
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("%s: no file is there", path)
		}
		for _, file := range found {
			if !named[file] {
				named[file] = true
				all = append(all, file)
			}
		}
	}
	return all, nil
}

func expandOne(path string) ([]string, error) {
	if path == "-" {
		return []string{path}, nil
	}
	if info, err := os.Stat(path); err == nil {
		if !info.IsDir() {
			return []string{path}, nil
		}
		return filesBelow(path)
	} else if !isGlob(path) {
		return nil, err
	}
	matches, err := filepath.Glob(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var all []string
	for _, match := range matches {
		found, err := expandOne(match)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// filesBelow lists the files in a directory and below, without hidden ones and those being written.
func filesBelow(dir string) ([]string, error) {
	var all []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path != dir && strings.HasPrefix(d.Name(), "."):
			if d.IsDir() {
				return fs.SkipDir
			}
		case strings.HasSuffix(d.Name(), ".tmp"):
		default:
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
				all = append(all, path)
			}
		}
		return nil
	})
	return all, err
}
