package core

import (
	"maps"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/apis"
)

// LimitRanges is the core/v1 limitranges resource.
var LimitRanges = apis.Resource{
	Version: "v1", Kind: "LimitRange", Plural: "limitranges", Short: []string{"limits"},
	ChecksNameOnUpdate: true,
	New:                apis.New[corev1.LimitRange], NewList: apis.NewList[corev1.LimitRangeList],
	NoGeneration:        true,
	AllowCreateOnUpdate: true,
	Default:             apis.On(defaultLimitRange),
	PrepareCreate: apis.On(func(l *corev1.LimitRange) {
		if l.Name == "" {
			l.Name = uuid.NewString()
		}
	}),
	Validate: apis.Check(validateLimitRange),
	Columns:  []metav1.TableColumnDefinition{apis.NameColumn, apis.Column("Created At", "date", metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"])},
	Row: apis.Cells(func(l *corev1.LimitRange, _ time.Time) []any {
		return []any{l.Name, l.CreationTimestamp.UTC().Format(time.RFC3339)}
	}),
}

// defaultLimitRange completes container limits: default from max, the default
// request from the default limit, else from min.
func defaultLimitRange(l *corev1.LimitRange) {
	for i := range l.Spec.Limits {
		item := &l.Spec.Limits[i]
		for _, list := range []corev1.ResourceList{item.Max, item.Min, item.Default, item.DefaultRequest, item.MaxLimitRequestRatio} {
			roundResources(list)
		}
		if item.Type != corev1.LimitTypeContainer {
			continue
		}
		item.Default = fillFrom(item.Default, item.Max)
		item.DefaultRequest = fillFrom(fillFrom(item.DefaultRequest, item.Default), item.Min)
	}
}

// fillFrom adds to list what only source has.
func fillFrom(list, source corev1.ResourceList) corev1.ResourceList {
	filled := corev1.ResourceList{}
	maps.Copy(filled, source.DeepCopy())
	maps.Copy(filled, list)
	return filled
}
