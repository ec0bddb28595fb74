package fairness

import (
	"context"
	"errors"
	"sync/atomic"
)

var errNotFinished = errors.New("not finished")

// Follows returns nil once what users configure is read and followed.
func (f *Fairness) Follows(context.Context) error { return finished(&f.followed) }

// Ensures returns nil once the objects that every cluster has were in order.
func (f *Fairness) Ensures(context.Context) error { return finished(&f.ensured) }

func finished(done *atomic.Bool) error {
	if !done.Load() {
		return errNotFinished
	}
	return nil
}
