//! The device, its buffers, and how a kernel gets onto it. The only module that names wgpu or naga.
//!
//! | file | holds |
//! |---|---|
//! | [`caps`] | what an adapter can do, as independent facts |
//! | `enumerate` | what each backend offers |
//! | [`adapter`] | which adapters there are, and which one is used |
//! | [`options`] | how a device is opened |
//! | `cpu`, `host_memory` | the processor as a device, and where its tensors lie |
//! | [`device`] | an open device: allocation, waits, counters |
//! | `faults` | in builds for tests: faults that are planted in shaders |
//! | `fault` | what goes wrong on a device by itself, kept for every wait |
//! | `memory` | how much memory a device has |
//! | [`tensor`] | a window of a buffer with a shape |
//! | [`transfer`] | host to device and back |
//! | [`kernel`] | a kernel's parts and parameters; a variant of it |
//! | [`reflect`] | what the composed WGSL says of itself |
//! | [`pipeline`] | compiled variants, made once each, several at a time |
//! | [`cache_file`] | what the driver remembers of them between runs |
//! | [`kept_file`] | small results that are kept beside it |
//! | [`profile`], `profiler` | where a step's time goes, by kernel; how that is found out |
//! | [`recorder`], `groups` | dispatches in order, one submit; the bind groups they keep |
//! | [`host`] | a dispatch as the host sees it, for those who run or check it there |
//!
//! A step of the engine is: `Recorder::dispatch` some hundred times, [`Recorder::submit`] once,
//! [`Readback::wait`] for a few token ids.

pub mod adapter;
pub mod cache_file;
pub mod caps;
mod counters;
mod cpu;
pub mod device;
mod enumerate;
mod fault;
#[cfg(feature = "faults")]
pub mod faults;
mod groups;
pub mod host;
mod host_memory;
pub mod kept_file;
pub mod kernel;
mod memory;
pub mod options;
pub mod pipeline;
pub mod profile;
mod profiler;
pub mod recorder;
pub mod reflect;
pub mod tensor;
pub mod transfer;

pub use adapter::{AdapterReport, Backend, DeviceType, Selection};
pub use cache_file::PipelineFolder;
pub use caps::{Caps, Coop};
pub use counters::Counters;
pub use device::Gpu;
pub use host::{Call, Interpreter, Place};
pub use host_memory::Words;
pub use kept_file::KeptFile;
pub use kernel::{Kernel, Params, Part, Target, Variant};
pub use memory::free_host_memory;
pub use options::OpenOptions;
pub use profile::{Profile, ProfileClock, ProfileEvent};
pub use recorder::Recorder;
pub use tensor::{DType, Tensor};
pub use transfer::Readback;
