// Package plugins lists the scheduler's plugins by name.
package plugins

import (
	"proa/internal/scheduler/plugins/defaultbinder"
	"proa/internal/scheduler/plugins/defaultpreemption"
	"proa/internal/scheduler/plugins/dynamicresources"
	"proa/internal/scheduler/plugins/gangscheduling"
	"proa/internal/scheduler/plugins/imagelocality"
	"proa/internal/scheduler/plugins/interpodaffinity"
	"proa/internal/scheduler/plugins/nodeaffinity"
	"proa/internal/scheduler/plugins/nodename"
	"proa/internal/scheduler/plugins/nodeports"
	"proa/internal/scheduler/plugins/noderesources"
	"proa/internal/scheduler/plugins/nodeunschedulable"
	"proa/internal/scheduler/plugins/nodevolumelimits"
	"proa/internal/scheduler/plugins/podtopologyspread"
	"proa/internal/scheduler/plugins/queuesort"
	"proa/internal/scheduler/plugins/schedulinggates"
	"proa/internal/scheduler/plugins/tainttoleration"
	"proa/internal/scheduler/plugins/volumebinding"
	"proa/internal/scheduler/plugins/volumerestrictions"
	"proa/internal/scheduler/plugins/volumezone"
	"proa/internal/scheduler/profile"
)

// Factories returns how each plugin is made.
func Factories() map[string]profile.Factory {
	return map[string]profile.Factory{
		defaultbinder.Name:         defaultbinder.New,
		defaultpreemption.Name:     defaultpreemption.New,
		dynamicresources.Name:      dynamicresources.New,
		gangscheduling.Name:        gangscheduling.New,
		imagelocality.Name:         imagelocality.New,
		interpodaffinity.Name:      interpodaffinity.New,
		nodeaffinity.Name:          nodeaffinity.New,
		nodename.Name:              nodename.New,
		nodeports.Name:             nodeports.New,
		noderesources.FitName:      noderesources.NewFit,
		noderesources.BalancedName: noderesources.NewBalanced,
		nodeunschedulable.Name:     nodeunschedulable.New,
		nodevolumelimits.Name:      nodevolumelimits.New,
		podtopologyspread.Name:     podtopologyspread.New,
		queuesort.Name:             queuesort.New,
		schedulinggates.Name:       schedulinggates.New,
		tainttoleration.Name:       tainttoleration.New,
		volumebinding.Name:         volumebinding.New,
		volumerestrictions.Name:    volumerestrictions.New,
		volumezone.Name:            volumezone.New,
	}
}
