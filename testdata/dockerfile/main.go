// dockerfile runs BuildKit's own linter over a Dockerfile, without a daemon and without a registry.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/moby/buildkit/client/llb"
	"github.com/moby/buildkit/client/llb/sourceresolver"
	"github.com/moby/buildkit/frontend/dockerfile/dockerfile2llb"
	"github.com/moby/buildkit/solver/pb"
	"github.com/opencontainers/go-digest"
)

// anyImage answers for every base image: the linter looks at the file alone.
type anyImage struct{}

func (anyImage) ResolveImageConfig(_ context.Context, ref string, _ sourceresolver.Opt) (string, digest.Digest, []byte, error) {
	config, err := json.Marshal(map[string]any{"architecture": "amd64", "os": "linux", "config": map[string]any{}, "rootfs": map[string]any{"type": "layers"}})
	return ref, digest.FromBytes(config), config, err
}

func (anyImage) ResolveSourceMetadata(ctx context.Context, op *pb.SourceOp, opt sourceresolver.Opt) (*sourceresolver.MetaResponse, error) {
	ref, sum, config, err := anyImage{}.ResolveImageConfig(ctx, op.Identifier, opt)
	return &sourceresolver.MetaResponse{Op: &pb.SourceOp{Identifier: ref}, Image: &sourceresolver.ResolveImageResponse{Digest: sum, Config: config}}, err
}

func lint(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	source := llb.NewSourceMap(nil, path, "dockerfile", text)
	source.Definition = &llb.Definition{}
	found, err := dockerfile2llb.DockerfileLint(context.Background(), text, dockerfile2llb.ConvertOpt{MetaResolver: anyImage{}, SourceMap: source})
	if err != nil {
		return err
	}
	if found.Error != nil {
		return fmt.Errorf("%s: %s", path, found.Error.Message)
	}
	for _, w := range found.Warnings {
		line := int32(0)
		if r := w.Location.GetRanges(); len(r) > 0 {
			line = r[0].GetStart().GetLine()
		}
		err = errors.Join(err, fmt.Errorf("%s:%d: %s: %s", path, line, w.RuleName, w.Detail))
	}
	return err
}

func main() {
	for _, path := range os.Args[1:] {
		if err := lint(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
