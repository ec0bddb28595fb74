// Package batch declares the kinds of the batch group, v1.
package batch

import "proa/internal/apis"

// Resources returns every kind of the group.
func Resources() []*apis.Resource { return []*apis.Resource{&CronJobs, &Jobs} }
