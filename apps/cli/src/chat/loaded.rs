//! The model behind the conversation: one engine, replaced when another model or adapter is asked for.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use nelumbo::gpu::{Backend, Selection, adapter};
use nelumbo::model::SamplingDefaults;
use nelumbo::text::Message;

use super::files::StateFolder;
use super::repl::Partner;
use crate::args::GlobalArgs;
use crate::exit::{Failure, say};
use crate::models::{self, Resolved};
use crate::options::RunOptions;
use crate::output::Answer;
use crate::session::{self, Session};
use crate::show;

/// A model that is loaded, and all that is needed to load another.
pub struct Loaded {
    session: Option<Session>,
    /// As the user called it.
    reference: String,
    model: Resolved,
    /// Where and how models are loaded.
    options: RunOptions,
    pipelines: Option<PathBuf>,
    global: GlobalArgs,
    state: Option<StateFolder>,
}

impl Loaded {
    /// Finds the model, downloads it if it has to, and loads it.
    pub fn open(
        reference: &OsStr,
        options: RunOptions,
        pipelines: Option<PathBuf>,
        global: &GlobalArgs,
        state: Option<StateFolder>,
    ) -> Result<Loaded, Failure> {
        let mut loaded = Loaded {
            session: None,
            reference: reference.to_string_lossy().into_owned(),
            model: models::resolve(reference, global)?,
            options,
            pipelines,
            global: global.clone(),
            state,
        };
        loaded.reload()?;
        loaded.remember(reference);
        Ok(loaded)
    }

    /// How to draw from the model, as far as its files and the table of names know.
    pub fn advice(&self) -> SamplingDefaults {
        let files = self.session.as_ref().map(Session::advice);
        self.model
            .advice(files.unwrap_or(&SamplingDefaults::default()))
    }

    fn reload(&mut self) -> Result<(), Failure> {
        // one model at a time: two may not fit
        self.session = None;
        let (path, quiet) = (&self.model.path, self.global.quiet);
        let session = session::open(path, &self.options, self.pipelines.clone(), quiet)?;
        self.session = Some(session);
        Ok(())
    }

    /// The model that was there before, after another failed to load.
    fn restore(&mut self) {
        if let Err(failure) = self.reload() {
            say(&format!(
                "error: the model before does not load either: {failure}"
            ));
        }
    }

    fn remember(&self, reference: &OsStr) {
        // from another folder the same relative path is another file
        let path = std::path::absolute(&self.model.path).ok();
        let is_path = std::path::Path::new(reference).exists();
        let name = match path.filter(|_| is_path) {
            Some(path) => path.to_str().map(str::to_owned),
            None => reference.to_str().map(str::to_owned),
        };
        if let (Some(state), Some(name)) = (&self.state, name) {
            state.remember_model(&name);
        }
    }

    fn session(&self) -> Result<&Session, Failure> {
        self.session.as_ref().ok_or_else(|| {
            Failure::Usage("no model is loaded: /load MODEL, or /backend NAME".to_owned())
        })
    }
}

impl Partner for Loaded {
    fn answer(
        &mut self,
        messages: &[Message],
        options: &RunOptions,
        piece: &mut dyn FnMut(&str) -> Result<(), Failure>,
        stop: &AtomicBool,
    ) -> Result<Answer, Failure> {
        self.session()?.reply(messages, options, piece, stop)
    }

    fn context_limit(&self) -> usize {
        self.session.as_ref().map_or(0, Session::context_limit)
    }

    fn name(&self) -> String {
        self.reference.clone()
    }

    fn info(&self) -> Result<String, Failure> {
        let summary = show::Summary::read(&self.model.path)?;
        Ok(format!(
            "{}device        {}",
            summary.text(),
            self.adapter()
        ))
    }

    fn template(&self) -> Result<String, Failure> {
        show::template(&self.model.path)
    }

    fn adapter(&self) -> String {
        match &self.session {
            Some(session) => {
                let device = session.device();
                format!("{} ({}), {}", device.adapter, device.backend, device.driver)
            }
            None => "no adapter: no model is loaded".to_owned(),
        }
    }

    fn load(&mut self, reference: &str) -> Result<SamplingDefaults, Failure> {
        let model = models::resolve(reference.as_ref(), &self.global)?;
        // what is no model is refused while the one before is still there
        nelumbo::formats::open(&model.path)?;
        let before = std::mem::replace(&mut self.model, model);
        if let Err(failure) = self.reload() {
            self.model = before;
            self.restore();
            return Err(failure);
        }
        self.reference = reference.to_owned();
        self.remember(reference.as_ref());
        Ok(self.advice())
    }

    fn move_to(&mut self, adapter: &str) -> Result<(), Failure> {
        let selection = selection(adapter).map_err(Failure::Usage)?;
        // what is not there is refused while the model is still on the one before
        adapter::choose(&adapter::list_for(&selection), &selection)?;
        let before = std::mem::replace(&mut self.options.device.selection, selection);
        if let Err(failure) = self.reload() {
            self.options.device.selection = before;
            self.restore();
            return Err(failure);
        }
        Ok(())
    }
}

/// An index of `nelumbo devices`, or an interface's name.
fn selection(text: &str) -> Result<Selection, String> {
    let any = Selection {
        allow_software: true,
        ..Selection::default()
    };
    if let Ok(index) = text.parse() {
        return Ok(Selection {
            device: Some(index),
            ..any
        });
    }
    match Backend::from_name(text) {
        Some(backend) => Ok(Selection {
            backend: Some(backend),
            ..any
        }),
        None => {
            let names = Backend::NAMED.map(Backend::name).join(", ");
            Err(format!(
                "/backend: \"{text}\" is neither one of {names} nor an index of `nelumbo devices`"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_go_by_interface_or_index() {
        assert_eq!(selection("gl").unwrap().backend, Some(Backend::Gl));
        assert_eq!(selection("cpu").unwrap().backend, Some(Backend::Cpu));
        assert_eq!(selection("3").unwrap().device, Some(3));
        let problem = selection("cuda").unwrap_err();
        assert!(
            problem.contains("cuda") && problem.contains("vulkan") && problem.contains("cpu"),
            "{problem}"
        );
    }
}
