package source

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"go.uber.org/zap"

	"github.com/squall-sre/squall/pipeline"
)

// ErrTooBig says that an archive unpacks to more than any log would: 1 GiB, and 200 times its own size.
var ErrTooBig = errors.New("the archive unpacks to too much")

// Open opens a log for reading from its beginning: a plain file, or a .gz (of one or several members), .zst
// or .bz2, known by its first bytes. Reading an archive that is a bomb ends in ErrTooBig.
func Open(path string) (io.ReadCloser, error) { return openLimited(path, defaultLimits) }

// OpenCounted is Open, and adds to read what was taken from the file: of an archive its packed bytes.
func OpenCounted(path string, read *atomic.Int64) (io.ReadCloser, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return openFile(file, countedFile{file, read}, defaultLimits)
}

// countedFile adds up what is read of a file.
type countedFile struct {
	file *os.File
	read *atomic.Int64
}

func (c countedFile) Read(p []byte) (int, error) {
	n, err := c.file.Read(p)
	c.read.Add(int64(n))
	return n, err
}

func (c countedFile) Close() error { return c.file.Close() }

func openLimited(path string, l limits) (io.ReadCloser, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return openFile(file, file, l)
}

// openFile is Open for what is open already, read through in. Closing the reader closes file; so does an error.
func openFile(file *os.File, in io.ReadCloser, l limits) (io.ReadCloser, error) {
	path := file.Name()
	info, err := file.Stat()
	if err == nil && info.IsDir() {
		err = fmt.Errorf("open %s: is a directory", path)
	}
	if err == nil {
		var r io.ReadCloser
		if r, err = unpacked(in, info.Size(), l); err == nil {
			return r, nil
		}
		err = fmt.Errorf("unpack %s: %w", path, err)
	}
	file.Close()
	return nil, err
}

const zstdWindow = 128 << 20 // what zstd --long makes

// unpacked reads what file holds, size bytes, unpacked if it is an archive. Closing it closes file.
func unpacked(file io.ReadCloser, size int64, l limits) (io.ReadCloser, error) {
	in := bufio.NewReaderSize(file, 64<<10)
	magic, err := in.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	a := &archive{file: file, left: max(l.archive, l.ratio*size)}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		a.Reader, err = gzip.NewReader(in)
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		var d *zstd.Decoder
		d, err = zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(zstdWindow))
		if err == nil {
			a.Reader, a.end = d, d.Close
		}
	case bytes.HasPrefix(magic, []byte("BZh")):
		a.Reader, err = bzip2.NewReader(in), nil
	default:
		return struct {
			io.Reader
			io.Closer
		}{in, file}, nil
	}
	if err != nil {
		return nil, err
	}
	return a, nil
}

// An archive unpacks a file, up to a limit.
type archive struct {
	io.Reader
	file io.Closer
	end  func()
	left int64
}

func (a *archive) Read(p []byte) (int, error) {
	if a.left <= 0 {
		return 0, ErrTooBig
	}
	n, err := a.Reader.Read(p[:min(int64(len(p)), a.left)])
	a.left -= int64(n)
	return n, err
}

func (a *archive) Close() error {
	if a.end != nil {
		a.end()
	}
	return a.file.Close()
}

// unpack reads the archives, one at a time: there is one buffer for them, and what follows them waits.
func (f *files) unpack(ctx context.Context) error {
	c := newCutter()
	for {
		select {
		case <-ctx.Done():
			return nil
		case g := <-f.archives:
			if err := f.readArchive(ctx, g, c); err != nil {
				return err
			}
		}
	}
}

// readArchive reads on in an archive from where the generation stands. What is damaged is told and left.
func (f *files) readArchive(ctx context.Context, g *generation, c *cutter) error {
	put := func(b *pipeline.Block) error {
		b.Behind = true // until its last block
		return f.put(g, b)
	}
	c.reset(g.stream, g.off, put)
	r, err := openFile(g.pack, g.pack, f.limits)
	if err == nil {
		defer r.Close()
		if _, err = io.CopyN(io.Discard, r, g.off); err == nil {
			err = readThrough(ctx, r, readSize, c)
		}
	}
	var broken putError
	switch {
	case ctx.Err() != nil:
		return nil
	case errors.As(err, &broken):
		return broken.error
	case errors.Is(err, io.EOF):
		err = c.finish(g.behind(c.next())...)
	default:
		f.meter.failed(errArchive)
		f.log.Warn("cannot read the rest of an archive", zap.String("path", g.path), zap.Error(err))
		err = c.finish(unreadable(c))
	}
	f.forget(g)
	return err
}

func unreadable(c *cutter) pipeline.Skip {
	return pipeline.Skip{At: c.next(), Bytes: pipeline.Unknown, Reason: pipeline.SkipUnread, Lost: true}
}
