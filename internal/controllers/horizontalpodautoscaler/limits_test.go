package horizontalpodautoscaler

import (
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
)

func rules(window int32, choose autoscalingv2.ScalingPolicySelect, policies ...autoscalingv2.HPAScalingPolicy) *autoscalingv2.HPAScalingRules {
	return &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: &window, SelectPolicy: &choose, Policies: policies}
}

func pods(n, period int32) autoscalingv2.HPAScalingPolicy {
	return autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PodsScalingPolicy, Value: n, PeriodSeconds: period}
}

func percent(n, period int32) autoscalingv2.HPAScalingPolicy {
	return autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PercentScalingPolicy, Value: n, PeriodSeconds: period}
}

func behavior(up, down *autoscalingv2.HPAScalingRules) *autoscalingv2.HorizontalPodAutoscalerBehavior {
	return &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: up, ScaleDown: down}
}

func TestLimits(t *testing.T) {
	const most, least, off = autoscalingv2.MaxChangePolicySelect, autoscalingv2.MinChangePolicySelect, autoscalingv2.DisabledPolicySelect
	free := rules(0, most, percent(100, 15))
	ago := func(d time.Duration, n int32) []change { return []change{{n, now.Add(-d)}} }
	recommended := func(d time.Duration, n int32) []recommendation { return []recommendation{{n, now.Add(-d)}} }
	tests := []struct {
		name             string
		behavior         *autoscalingv2.HorizontalPodAutoscalerBehavior
		past             history
		current, desired int32
		want             int32
		stable, limit    string
	}{
		{"without rules a target at most doubles", nil, history{}, 10, 50, 20, "ReadyForNewScale", "ScaleUpLimit"},
		{"without rules a small target goes up to four", nil, history{}, 1, 9, 4, "ReadyForNewScale", "ScaleUpLimit"},
		{"the maximum holds", nil, history{}, 80, 150, 100, "ReadyForNewScale", "TooManyReplicas"},
		{"the minimum holds", nil, history{}, 4, 1, 2, "ReadyForNewScale", "TooFewReplicas"},
		{"a number in range is taken", nil, history{}, 4, 5, 5, "ReadyForNewScale", "DesiredWithinRange"},
		{"without rules the highest of five minutes holds", nil, history{recommendations: recommended(4*time.Minute, 8)}, 8, 3, 8, "ScaleDownStabilized", "DesiredWithinRange"},
		{"without rules what is older than five minutes is forgotten", nil, history{recommendations: recommended(6*time.Minute, 8)}, 8, 3, 3, "ReadyForNewScale", "DesiredWithinRange"},
		{"a window down keeps the highest", behavior(free, rules(60, most, percent(100, 15))), history{recommendations: recommended(50*time.Second, 7)}, 8, 3, 7, "ScaleDownStabilized", "DesiredWithinRange"},
		{"a window up keeps the lowest", behavior(rules(60, most, percent(900, 15)), free), history{recommendations: recommended(50*time.Second, 5)}, 4, 9, 5, "ScaleUpStabilized", "DesiredWithinRange"},
		{"a window up never scales down", behavior(rules(60, most, percent(900, 15)), free), history{recommendations: recommended(50*time.Second, 2)}, 4, 9, 4, "ScaleUpStabilized", "DesiredWithinRange"},
		{"the larger of two policies", behavior(rules(0, most, pods(4, 15), percent(100, 15)), free), history{}, 10, 50, 20, "ReadyForNewScale", "ScaleUpLimit"},
		{"the smaller of two policies", behavior(rules(0, least, pods(4, 15), percent(100, 15)), free), history{}, 10, 50, 14, "ReadyForNewScale", "ScaleUpLimit"},
		{"the larger of two policies down", behavior(free, rules(0, most, pods(4, 15), percent(10, 15))), history{}, 20, 2, 16, "ReadyForNewScale", "ScaleDownLimit"},
		{"the smaller of two policies down", behavior(free, rules(0, least, pods(4, 15), percent(10, 15))), history{}, 20, 2, 18, "ReadyForNewScale", "ScaleDownLimit"},
		{"scaling up switched off", behavior(rules(0, off, pods(4, 15)), free), history{}, 10, 50, 10, "ReadyForNewScale", "ScaleUpLimit"},
		{"scaling down switched off", behavior(free, rules(0, off, pods(4, 15))), history{}, 10, 2, 10, "ReadyForNewScale", "ScaleDownLimit"},
		{"what was added in the period counts", behavior(rules(0, most, pods(4, 60)), free), history{ups: ago(30*time.Second, 3)}, 10, 50, 11, "ReadyForNewScale", "ScaleUpLimit"},
		{"what was added before the period does not", behavior(rules(0, most, pods(4, 60)), free), history{ups: ago(61*time.Second, 3)}, 10, 50, 14, "ReadyForNewScale", "ScaleUpLimit"},
		{"what was taken away in the period may come back", behavior(rules(0, most, pods(4, 60)), free), history{downs: ago(30*time.Second, 3)}, 10, 50, 17, "ReadyForNewScale", "ScaleUpLimit"},
		{"more than allowed was added already", behavior(rules(0, most, pods(4, 60)), free), history{ups: ago(30*time.Second, 9)}, 10, 50, 10, "ReadyForNewScale", "ScaleUpLimit"},
		{"a percentage is of what there was when the period began", behavior(free, rules(0, most, percent(50, 60))), history{downs: ago(30*time.Second, 4)}, 16, 2, 10, "ReadyForNewScale", "ScaleDownLimit"},
		{"the minimum holds with rules", behavior(free, free), history{}, 4, 1, 2, "ReadyForNewScale", "TooFewReplicas"},
		{"the maximum holds with rules", behavior(free, free), history{}, 80, 150, 100, "ReadyForNewScale", "TooManyReplicas"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := tt.past.limit(bounds{current: tt.current, min: 2, max: 100, behavior: tt.behavior}, tt.desired, now)
			if v.replicas != tt.want || v.stabilized.reason != tt.stable || v.reason != tt.limit || v.limited != (tt.limit != "DesiredWithinRange") {
				t.Errorf("got %d %s %s limited %v; want %d %s %s", v.replicas, v.stabilized.reason, v.reason, v.limited, tt.want, tt.stable, tt.limit)
			}
		})
	}
}

func TestHistoryForgetsWhatNoPeriodAsksFor(t *testing.T) {
	b := behavior(rules(0, autoscalingv2.MaxChangePolicySelect, pods(4, 60)), nil)
	h := history{ups: []change{{1, now.Add(-2 * time.Minute)}, {2, now.Add(-time.Second)}}}
	h.scaled(b, 3, 6, now)
	if len(h.ups) != 2 || h.ups[1].replicas != 3 || len(h.downs) != 0 {
		t.Errorf("kept %+v %+v", h.ups, h.downs)
	}
}
