package controllers

import (
	"context"
	"testing"

	"k8s.io/utils/clock"
)

func TestAPanicIsOneKeysFailureAndTriedAgain(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	attempts := 0
	l := NewLoop("test", Config{Clock: clock.RealClock{}, Workers: 1}, func(context.Context, Key) (Result, error) {
		if attempts++; attempts == 1 {
			panic("broken")
		}
		cancel()
		return Result{}, nil
	})
	l.Enqueue(Key{Name: "a"})
	if err := l.Run(ctx); err != nil || attempts != 2 {
		t.Errorf("%d attempts, %v", attempts, err)
	}
}
