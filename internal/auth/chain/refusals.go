package chain

import (
	"strings"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
)

// refusals are what authorizers without an opinion said.
type refusals struct {
	reasons []string
	errs    []error
}

func (r *refusals) add(reason string, err error) {
	if reason != "" {
		r.reasons = append(r.reasons, reason)
	}
	if err != nil {
		r.errs = append(r.errs, err)
	}
}

func (r *refusals) reason() string { return strings.Join(r.reasons, "\n") }

func (r *refusals) err() error {
	if len(r.errs) == 0 {
		return nil
	}
	return utilerrors.NewAggregate(r.errs)
}
