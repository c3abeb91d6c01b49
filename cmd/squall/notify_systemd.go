package main

import (
	"context"
	"fmt"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"go.uber.org/zap"
)

// systemd tells the service manager how squall is (sd_notify(3)). Outside of systemd, where NOTIFY_SOCKET is
// not set, every method does nothing. It is safe for concurrent use.
type systemd struct {
	// turned tells whether the pipeline's loops have turned since it was last asked: lines went through, or there
	// were none and the loops said so. A watchdog that is fed by a timer alone guards nothing.
	turned func() bool
	log    *zap.Logger
}

// Ready says that start or reload is complete.
func (s systemd) Ready() error { return sdNotify(daemon.SdNotifyReady) }

// Reloading says that a reload has begun. systemd 253 wants the time of it to tell an old READY from a new.
func (s systemd) Reloading() error {
	return sdNotify(daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec())
}

// Stopping says that the end has begun.
func (s systemd) Stopping() error { return sdNotify(daemon.SdNotifyStopping) }

// Status shows one line in `systemctl status`.
func (s systemd) Status(line string) error {
	return sdNotify("STATUS=" + oneLine(line))
}

// oneLine keeps a text from becoming a second assignment.
func oneLine(s string) string {
	const most = 256 // bytes: what a terminal shows in two lines
	out := make([]byte, 0, min(len(s), most))
	for i := 0; i < len(s) && len(out) < most; i++ {
		if c := s[i]; c < 0x20 || c == 0x7f {
			out = append(out, ' ')
			continue
		}
		out = append(out, s[i])
	}
	return string(out)
}

// Run feeds the watchdog, at half of WATCHDOG_USEC, while the pipeline turns. Without a watchdog it waits for
// ctx to end.
func (s systemd) Run(ctx context.Context) error {
	timeout, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return fmt.Errorf("systemd watchdog: %w", err)
	}
	if timeout <= 0 {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(timeout / 2)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			// One datagram that did not arrive is no reason to stop detecting: systemd counts for itself.
			if err := s.feed(); err != nil {
				s.log.Warn("the watchdog was not fed", zap.Error(err))
			}
		}
	}
}

// feed is one look at the pipeline.
func (s systemd) feed() error {
	if !s.turned() {
		return nil // systemd will kill and restart us: that is what the watchdog is for
	}
	return sdNotify(daemon.SdNotifyWatchdog)
}

func sdNotify(state string) error {
	if _, err := daemon.SdNotify(false, state); err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	return nil
}
