//! A chat template and a conversation.

use super::Target;
use nelumbo::Error;
use nelumbo::text::{ChatTemplate, Message, RenderOptions};

pub const TARGET: Target = Target {
    name: "template",
    run,
    seeds,
};

/// Ends every content.
const MARK: &str = "\u{27E6}q\u{27E7}";

fn run(data: &[u8]) {
    let parts = super::parts::<3>(data).map(String::from_utf8_lossy);
    let [source, system, user] = &parts;
    let template = match ChatTemplate::new(source) {
        Ok(template) => template,
        Err(error) => return refused(&error),
    };
    let message = |role: &str, content: &str| Message::new(role, &format!("{content}{MARK}"));
    let messages = [
        message("system", system),
        message("user", user),
        message("assistant", "yes"),
        message("user", user),
    ];
    let options = RenderOptions {
        add_generation_prompt: true,
        bos_token: "<s>".to_owned(),
        eos_token: "</s>".to_owned(),
        date: "2026-01-31".to_owned(),
        ..RenderOptions::default()
    };
    match template.render(&messages, &options) {
        Ok(rendered) => {
            let mut end = 0;
            for span in &rendered.content_spans {
                assert!(
                    end <= span.start && span.start <= span.end,
                    "{span:?} after {end}"
                );
                let _ = &rendered.text[span.clone()]; // whole characters
                end = span.end;
            }
            // what only the messages can have written is theirs
            for (at, _) in rendered.text.match_indices(MARK) {
                let has = |span: &std::ops::Range<usize>| {
                    span.contains(&at) && span.end >= at + MARK.len()
                };
                let ours = source.contains(MARK) || rendered.content_spans.iter().any(has);
                assert!(ours, "{at} in {:?}", rendered.text);
            }
        }
        Err(error) => refused(&error),
    }
}

fn refused(error: &Error) {
    let ours = matches!(error, Error::Template { .. } | Error::Request { .. });
    assert!(ours && !error.to_string().is_empty(), "{error:?}");
}

fn seeds() -> Vec<Vec<u8>> {
    let chatml = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + \
        message['content'] | trim + '<|im_end|>' + '\\n' }}{% endfor %}\
        {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
    let turns = "{{ bos_token }}{% if messages[0].role == 'system' %}{% set first = messages[0].content %}\
        {% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}\
        {% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
        {{ raise_exception('roles must alternate') }}{% endif %}\
        {{ '[INST] ' ~ m.content.strip() ~ ' [/INST]' if m.role == 'user' else m.content ~ eos_token }}\
        {% endfor %}";
    let rich = "{%- macro say(x, n=2) -%}{{ x | upper | replace('A', 'b') }}{%- endmacro -%}\
        {% set ns = namespace(count=0) %}{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}\
        {% set ns.count = ns.count + m.content | length %}{{ say(m.content[:5]) }}{{ m | tojson(indent=2) }}\
        {% generation %}{{ m.content.split(' ') | last }}{% endgeneration %}{% endfor %}\
        {{ strftime_now('%d %b %Y') }}{{ ns.count ** 2 }}{{ range(3) | list }}";
    vec![
        super::joined(&[chatml, "Be kind.", "  hi <|im_end|> there "]),
        super::joined(&[turns, "a", "b"]),
        super::joined(&[rich, "", "words in a row"]),
    ]
}
