//! How a device is opened: plain data, and the switches that the environment has for it.

use crate::error::{Error, Result};
use crate::gpu::Selection;
use crate::gpu::cache_file::PipelineFolder;
#[cfg(feature = "faults")]
use crate::gpu::faults::{self, ShaderFault};
use crate::gpu::host::Interpreter;
use crate::gpu::kernel::Part;
use std::borrow::Cow;

/// How to open a device. [`OpenOptions::from_env`] reads the switches.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Which adapter.
    pub selection: Selection,
    /// Keep only these capabilities (see [`Caps::restrict`](crate::gpu::Caps::restrict)); `None`
    /// keeps all.
    pub caps: Option<String>,
    /// Lowers the largest binding, in bytes, so that tests see tensors in several shards.
    pub max_binding: Option<u64>,
    /// Shaders with bounds checks and bounded loops. Off by default: no kernel depends on them, and
    /// the tests run every kernel with and without.
    pub checked: bool,
    /// Cooperative matrices are asked for where the adapter offers a configuration that kernels can
    /// use: an experimental feature of the graphics library, which nothing but the fast mode needs.
    pub coop: bool,
    /// Faults that are planted in this device's shaders.
    #[cfg(feature = "faults")]
    pub faults: Vec<&'static ShaderFault>,
    /// Where the driver's compiled pipelines are kept between runs; `None` keeps none.
    pub pipelines: Option<PipelineFolder>,
    /// Who runs dispatches where the host computes ([`Backend::Cpu`](crate::gpu::Backend::Cpu)): this
    /// module knows no kernel. [`kernels::open`](crate::kernels::open) fills it in.
    pub host: Option<fn() -> Box<dyn Interpreter>>,
}

impl OpenOptions {
    /// The defaults, with `NELUMBO_CAPS`, `NELUMBO_MAX_BINDING` (bytes) and `NELUMBO_CHECKED` (`1`
    /// or `0`) applied; in builds for tests `NELUMBO_FAULT`, too.
    ///
    /// # Errors
    /// [`Error::Request`] naming the variable.
    pub fn from_env() -> Result<OpenOptions> {
        let mut options = OpenOptions {
            caps: std::env::var("NELUMBO_CAPS").ok(),
            checked: switch("NELUMBO_CHECKED")?.unwrap_or(false),
            #[cfg(feature = "faults")]
            faults: faults::from_env()?,
            ..OpenOptions::default()
        };
        if let Ok(value) = std::env::var("NELUMBO_MAX_BINDING") {
            let bytes = value.parse().map_err(|_| {
                Error::request(
                    "NELUMBO_MAX_BINDING",
                    format!("\"{value}\" is not a number of bytes"),
                )
            })?;
            options.max_binding = Some(bytes);
        }
        Ok(options)
    }

    /// The text that kernels are composed of there.
    #[cfg(feature = "faults")]
    pub(crate) fn source(&self, part: &Part) -> Cow<'static, str> {
        faults::source(&self.faults, part)
    }

    /// The text that kernels are composed of.
    #[cfg(not(feature = "faults"))]
    pub(crate) fn source(&self, part: &Part) -> Cow<'static, str> {
        Cow::Borrowed(part.source)
    }

    /// Where results are kept, under a key of what kernels are composed of there.
    pub(crate) fn folder(&self) -> Option<PipelineFolder> {
        let folder = self.pipelines.clone()?;
        #[cfg(feature = "faults")]
        let folder = PipelineFolder {
            shaders: faults::key(folder.shaders, &self.faults),
            ..folder
        };
        Some(folder)
    }
}

/// The switch `name` of the environment: `1` or `0`, `None` where it is not set or empty.
///
/// # Errors
/// [`Error::Request`] naming it, when it is anything else.
pub fn switch(name: &str) -> Result<Option<bool>> {
    match std::env::var_os(name) {
        None => Ok(None),
        Some(value) if value.is_empty() => Ok(None),
        Some(value) if value == "1" => Ok(Some(true)),
        Some(value) if value == "0" => Ok(Some(false)),
        Some(value) => {
            let problem = format!("\"{}\" is neither 1 nor 0", value.to_string_lossy());
            Err(Error::request(name, problem))
        }
    }
}
