//! Bind groups, made once for the same tensors and the same pipeline.

use crate::gpu::device::Gpu;
use crate::gpu::pipeline::{MAX_BINDINGS, Pipeline};
use crate::gpu::tensor::Tensor;
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// Pipeline, then buffer, offset and size of each tensor.
type GroupKey = (u64, [(u64, u64, u64); MAX_BINDINGS]);

/// The groups of a recorder.
#[derive(Default)]
pub(super) struct Groups(HashMap<GroupKey, wgpu::BindGroup>);

impl Groups {
    /// The group of `tensors` for `pipeline`, in its order.
    pub fn get(
        &mut self,
        gpu: &Gpu,
        pipeline: &Pipeline,
        tensors: &[(&str, &Tensor)],
    ) -> &wgpu::BindGroup {
        let key = group_key(pipeline, tensors);
        self.0
            .entry(key)
            .or_insert_with(|| bind_group(gpu, pipeline, tensors))
    }
}

fn group_key(pipeline: &Pipeline, tensors: &[(&str, &Tensor)]) -> GroupKey {
    let mut windows = [(0, 0, 0); MAX_BINDINGS];
    for (window, (_, tensor)) in windows.iter_mut().zip(tensors) {
        *window = (tensor.buffer.id, tensor.offset, tensor.bytes);
    }
    (pipeline.id, windows)
}

fn bind_group(gpu: &Gpu, pipeline: &Pipeline, tensors: &[(&str, &Tensor)]) -> wgpu::BindGroup {
    let entries: Vec<wgpu::BindGroupEntry> = pipeline
        .bindings
        .iter()
        .zip(tensors)
        .map(|(binding, (_, tensor))| wgpu::BindGroupEntry {
            binding: binding.index,
            resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                buffer: tensor.buffer.raw(),
                offset: tensor.offset,
                size: wgpu::BufferSize::new(tensor.bytes),
            }),
        })
        .collect();
    gpu.counters.bind_groups.fetch_add(1, Ordering::Relaxed);
    gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &pipeline.tensors_layout,
        entries: &entries,
    })
}
