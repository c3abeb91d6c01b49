package simulate

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// filePeriod is how much one file of an ALB holds.
const filePeriod = 5 * time.Minute

// albFile is the file that one node writes now.
type albFile struct {
	period int64
	under  io.WriteCloser
	zip    *gzip.Writer
}

func (f *albFile) close() error {
	if f.zip == nil {
		return nil
	}
	err := errors.Join(f.zip.Close(), f.under.Close())
	f.zip, f.under = nil, nil
	return err
}

// RunALBFiles is Run as an ALB delivers to S3: for each of its nodes one gzip file every five minutes. create
// opens a file by its key, AWSLogs/…/….log.gz. The format is alb, whatever the options say.
func RunALBFiles(ctx context.Context, o Options, nodes int, create func(key string) (io.WriteCloser, error)) (*Truth, error) {
	if nodes < 1 {
		return nil, fmt.Errorf("an ALB of %d nodes", nodes)
	}
	o.Format = "alb"
	open := make([]albFile, nodes)
	write := func(r *request, line []byte) error {
		node := r.node(nodes)
		f, period := &open[node], r.end/int64(filePeriod)
		if f.zip == nil || f.period != period {
			if err := f.close(); err != nil {
				return err
			}
			under, err := create(albKey(period, node, o.Seed))
			if err != nil {
				return err
			}
			*f = albFile{period: period, under: under, zip: gzip.NewWriter(under)}
		}
		_, err := f.zip.Write(line)
		return err
	}
	truth, err := run(ctx, o, onlyMain(write), func() error { return nil })
	for i := range open {
		if e := open[i].close(); e != nil && err == nil {
			err = fmt.Errorf("write the log: %w", e)
		}
	}
	if err != nil {
		return nil, err
	}
	return truth, nil
}

// albKey names a file as AWS does: by the end of its period, the node's address and some random letters.
func albKey(period int64, node int, seed uint64) string {
	end := time.Unix(0, (period+1)*int64(filePeriod)).UTC()
	random := request{id: seed ^ uint64(period)<<8 ^ uint64(node)}
	return fmt.Sprintf("AWSLogs/123456789012/elasticloadbalancing/eu-west-1/%s/123456789012_elasticloadbalancing_eu-west-1_"+
		"app.shop-alb.50dc6c495c0c9188_%s_10.0.1.%d_%08x.log.gz",
		end.Format("2006/01/02"), end.Format("20060102T1504Z"), node+1, random.random(0)&0xffffffff)
}
