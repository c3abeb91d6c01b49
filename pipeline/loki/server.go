package loki

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"time"

	"go.uber.org/zap"
)

const (
	buildInfoPath = "/loki/api/v1/status/buildinfo"

	askVersionEvery = 10 * time.Minute
	// plainFor is how long a server whose version cannot be asked is thought to take no structured metadata.
	plainFor = 24 * time.Hour
)

// plainServer remembers, over restarts, the server that refused structured metadata. It holds for the version that
// refused.
type plainServer struct {
	URL     string    `json:"url"`
	Version string    `json:"version"` // empty: the server does not tell
	Since   time.Time `json:"since"`
}

func (s *Shipper) loadServer() {
	data, err := os.ReadFile(s.serverPath)
	var p plainServer
	if err == nil && json.Unmarshal(data, &p) == nil && p.URL == s.safeURL() {
		s.plain = &p
	}
}

// learnPlain notes that the server refuses structured metadata.
func (s *Shipper) learnPlain(ctx context.Context, a answer) {
	if s.plain != nil {
		return
	}
	version, _ := s.version(ctx)
	s.asked = s.deps.Now()
	s.plain = &plainServer{URL: s.safeURL(), Version: version, Since: s.asked.UTC()}
	s.deps.Log.Warn("Loki takes no structured metadata: it is written behind the line from now on",
		zap.String("version", version), zap.String("answer", cut(a.text, maxDeadText)))
	data, err := json.Marshal(s.plain)
	if err == nil {
		err = os.WriteFile(s.serverPath, data, 0o640)
	}
	if err != nil {
		s.shout("what Loki refuses cannot be remembered over a restart", zap.Error(err))
	}
}

// reviewPlain tries structured metadata again when the server is another version than the one that refused it.
func (s *Shipper) reviewPlain(ctx context.Context) {
	now := s.deps.Now()
	if s.plain == nil || !s.interrupted && now.Sub(s.asked) < askVersionEvery {
		return
	}
	s.asked, s.interrupted = now, false
	version, ok := s.version(ctx)
	if ok && version == s.plain.Version || !ok && now.Sub(s.plain.Since) < plainFor {
		return
	}
	s.plain = nil
	if err := os.Remove(s.serverPath); err != nil && !os.IsNotExist(err) {
		s.shout("what Loki refused cannot be forgotten", zap.Error(err))
	}
	s.deps.Log.Info("Loki is asked again whether it takes structured metadata", zap.String("version", version))
}

// version asks the server for its version.
func (s *Shipper) version(ctx context.Context) (string, bool) {
	url, ok := strings.CutSuffix(s.url, pushPath)
	if !ok {
		return "", false
	}
	status, _, body, err := s.do(ctx, http.MethodGet, url+buildInfoPath, nil)
	var info struct {
		Version string `json:"version"`
	}
	if err != nil || status != http.StatusOK || json.Unmarshal(body, &info) != nil || info.Version == "" {
		return "", false
	}
	return info.Version, true
}
