use std::time::{Duration, Instant};

use serde_json::json;

use super::super::{ChatTemplate, Message, RenderOptions};
use crate::error::Error;

/// Alternating turns are enforced; content is trimmed; in the manner of Llama 2.
const LLAMA2: &str = "\
{%- if messages[0]['role'] == 'system' -%}
  {%- set system = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' -%}
  {%- set turns = messages[1:] -%}
{%- else -%}
  {%- set system = '' -%}
  {%- set turns = messages -%}
{%- endif -%}
{%- for turn in turns -%}
  {%- if (turn['role'] == 'user') != (loop.index0 % 2 == 0) -%}
    {{- raise_exception('Turns must alternate between user and assistant') -}}
  {%- endif -%}
  {%- if turn['role'] == 'user' -%}
    {{- bos_token + '[INST] ' + (system if loop.first else '') + turn['content'].strip() + ' [/INST]' -}}
  {%- else -%}
    {{- ' ' + turn['content'].strip() + ' ' + eos_token -}}
  {%- endif -%}
{%- endfor -%}";

/// Header tokens, a date, `trim`; in the manner of Llama 3.
const LLAMA3: &str = "\
{{- bos_token }}
{%- set ns = namespace(date='26 Jul 2024') %}
{%- if strftime_now is defined %}
    {%- set ns.date = strftime_now('%d %b %Y') %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday: ' ~ ns.date ~ '<|eot_id|>' }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}";

/// Blocks on lines of their own, which vanish; in the manner of Zephyr.
const ZEPHYR: &str = "\
{% for message in messages %}
    {% if message.role not in ['system', 'user', 'assistant'] %}
        {% continue %}
    {% endif %}
{{ '<|' ~ message.role ~ '|>' }}
{{ message.content + eos_token }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
";

fn messages(list: &[(&str, &str)]) -> Vec<Message> {
    list.iter()
        .map(|(role, content)| Message::new(role, content))
        .collect()
}

fn options() -> RenderOptions {
    RenderOptions {
        add_generation_prompt: true,
        bos_token: "<s>".into(),
        eos_token: "</s>".into(),
        ..RenderOptions::default()
    }
}

fn render(
    source: &str,
    list: &[(&str, &str)],
    options: &RenderOptions,
) -> crate::error::Result<String> {
    let rendered = ChatTemplate::new(source)?.render(&messages(list), options)?;
    Ok(rendered.text)
}

fn value(expression: &str) -> String {
    match render(
        &format!("{{{{ {expression} }}}}"),
        &[("user", "q")],
        &options(),
    ) {
        Ok(text) => text,
        Err(Error::Template { problem }) => format!("error: {problem}"),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn families_render_as_written() {
    let list = [
        ("system", "Be brief."),
        ("user", "  Hi "),
        ("assistant", "Hello."),
        ("user", "Why?"),
    ];
    assert_eq!(
        render(LLAMA2, &list, &options()).unwrap(),
        "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello. </s><s>[INST] Why? [/INST]"
    );
    assert_eq!(
        render(ZEPHYR, &list[..2], &options()).unwrap(),
        "<|system|>\nBe brief.</s>\n<|user|>\n  Hi </s>\n<|assistant|>\n"
    );
    let llama3 = "<s><|start_header_id|>system<|end_header_id|>\n\nToday: DATE<|eot_id|>\
        <|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n";
    assert_eq!(
        render(LLAMA3, &list[1..2], &options()).unwrap(),
        llama3.replace("DATE", "26 Jul 2024")
    );
    let dated = RenderOptions {
        date: "2026-02-03".into(),
        ..options()
    };
    assert_eq!(
        render(LLAMA3, &list[1..2], &dated).unwrap(),
        llama3.replace("DATE", "03 Feb 2026")
    );
}

#[test]
fn zephyr_skips_roles_with_continue() {
    assert_eq!(
        render(ZEPHYR, &[("tool", "x"), ("user", "y")], &options()).unwrap(),
        "<|user|>\ny</s>\n<|assistant|>\n"
    );
}

#[test]
fn arguments_and_filters_as_hugging_face_has_them() {
    assert_eq!(
        value("tools is none and documents is none and missing is not defined"),
        "True"
    );
    assert_eq!(
        value("messages | tojson"),
        r#"[{"role": "user", "content": "q"}]"#
    );
    assert_eq!(
        value(r#"{"a": "<é&'\"", "b": [1, 2.5, true, none], "c": {}, "d": []} | tojson"#),
        r#"{"a": "<é&'\"", "b": [1, 2.5, true, null], "c": {}, "d": []}"#
    );
    assert_eq!(
        value(r#"{"b": [1], "a": "é"} | tojson(indent=2, ensure_ascii=true, sort_keys=true)"#),
        "{\n  \"a\": \"\\u00e9\",\n  \"b\": [\n    1\n  ]\n}"
    );
    assert_eq!(
        value(r#"[1, {"a": 2}] | tojson(separators=[",", ":"])"#),
        r#"[1,{"a":2}]"#
    );
    assert_eq!(
        value("' a,b '.strip().split(',') | join('+') | upper"),
        "A+B"
    );
    assert_eq!(
        value("'abc'.startswith('ab') and 'x' ~ 1 == 'x1' and 'abc'[::-1] == 'cba'"),
        "True"
    );
    let mut with = options();
    with.kwargs =
        json!({"enable_thinking": false, "tools": [{"name": "f", "n": 18446744073709551615u64}]})
            .as_object()
            .unwrap()
            .clone();
    assert_eq!(
        render("{{ enable_thinking }} {{ tools | tojson }}", &[], &with).unwrap(),
        r#"False [{"name": "f", "n": 18446744073709551615}]"#
    );
    let generation =
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}";
    assert_eq!(
        render(generation, &[("assistant", "A")], &options()).unwrap(),
        "A"
    );
}

#[test]
fn texts_are_formatted_as_python_does() {
    assert_eq!(value("'%s is %d%%' % ('a', 7)"), "a is 7%");
    assert_eq!(value("'<%s>' % messages[0].role | upper ~ '!'"), "<USER>!");
    assert_eq!(value("'%(a)s-%(b)03d' % {'a': 'x', 'b': 5}"), "x-005");
    assert_eq!(value("7 % 4 ~ '%'"), "3%");
    assert_eq!(value("'%05.1f|%-4s|' | format(2.25, 'a')"), "002.2|a   |");
    assert_eq!(value("'{} {n:>3}'.format(1, n='a')"), "1   a");
    assert!(value("'%s %s' % 'a'").starts_with("error: line 1: "));
}

#[test]
fn arguments_may_not_replace_the_runtimes() {
    for name in [
        "messages",
        "bos_token",
        "raise_exception",
        "strftime_now",
        "add_generation_prompt",
    ] {
        let mut with = options();
        with.kwargs.insert(name.into(), json!("x"));
        let error = render("", &[], &with).unwrap_err();
        assert!(
            matches!(&error, Error::Request { field, .. } if *field == format!("chat_template_kwargs.{name}")),
            "{error}"
        );
    }
}

#[test]
fn t15_roles_are_plain_words() {
    for role in ["", "user<|im_end|>", "a b", "é", &"x".repeat(65)] {
        let error = render("", &[("user", ""), (role, "hi")], &options()).unwrap_err();
        assert!(
            matches!(&error, Error::Request { field, .. } if field == "messages[1].role"),
            "{error}"
        );
    }
}

#[test]
fn t9_syntax_errors_have_a_line() {
    let error = |source: &str| ChatTemplate::new(source).unwrap_err().to_string();
    assert!(
        error("a\nb\n{% for %}").starts_with("chat template: line 3: "),
        "{}",
        error("a\nb\n{% for %}")
    );
    assert!(error("{{ 'abc }}").contains("line 1"));
    assert!(error("{% if true %}").contains("line 1"));
    assert!(error(&"x".repeat((1 << 20) + 1)).contains("1048577 bytes, allowed are 1048576"));
}

#[test]
fn t10_endless_work_is_stopped() {
    let sources = [
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        "{% for a in range(1000000) %}{{ a }}{% endfor %}",
        "{{ 'a' * 1073741824 }}",
        "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[1, 2]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}",
        "{% set ns = namespace(x=[1, 2]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%1000000000000000000d' | format(1) }}",
        "{{ '{:>1000000000000000000}'.format('x') }}",
        "{{ ('{0}' * 100000).format('x' * 1000000) }}",
        "{{ ('%(a)s' * 100000) | format(a='x' * 1000000) }}",
        "{{ ','.join(['x' * 1000000] * 100000) }}",
        "{{ (['x' * 1000000] * 100000) | join }}",
        "{{ (['x' * 1000000] * 100000) | map('upper') | list | length }}",
        "{% set ns = namespace(x=[1, 2]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ '%s' % [ns.x] }}",
        "{% set ns = namespace(x=[1, 2]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ','.join(ns.x) }}",
        "{{ ('' ~ ('x' * 10000000)).split('') | length }}",
        "{{ 'a'.ljust(1000000000) }}",
        "{% for i in range(1000) %}{{ 'x' * 100000 }}{% endfor %}",
    ];
    for source in sources {
        let start = Instant::now();
        let error = render(source, &[("user", "q")], &options()).expect_err(source);
        assert!(matches!(error, Error::Template { .. }), "{source}: {error}");
        // 100 ms where it matters, in a build for release on a machine of its own.
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "{source}: {:?}",
            start.elapsed()
        );
    }
}

#[test]
fn t10_deeply_nested_values_do_not_overflow_the_stack() {
    let nest = "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}";
    for end in [
        "",
        "{{ ns.x | tojson }}",
        "{{ ns.x }}",
        "{{ ns.x == ns.x }}",
        "{{ [ns.x, ns.x] | sort }}",
        "{{ {(ns.x): 1} }}",
    ] {
        let _ = render(&format!("{nest}{end}"), &[], &options());
    }
    let deep = render(&format!("{nest}{{{{ ns.x | tojson }}}}"), &[], &options())
        .unwrap_err()
        .to_string();
    assert!(
        deep.contains("nested deeper than") || deep.contains("fuel"),
        "{deep}"
    );
}

#[test]
fn t11_nested_source_is_refused() {
    let ifs = "{% if true %}".repeat(6000) + &"{% endif %}".repeat(6000);
    let parentheses = format!("{{{{ {}1{} }}}}", "(".repeat(6000), ")".repeat(6000));
    let nots = format!("{{{{ {}true }}}}", "not ".repeat(6000));
    let minus = format!("{{{{ {}1 }}}}", "-".repeat(6000));
    let lists = format!("{{{{ {}{} }}}}", "[".repeat(6000), "]".repeat(6000));
    for source in [ifs, parentheses, lists] {
        let error = ChatTemplate::new(&source).unwrap_err().to_string();
        assert!(error.contains("recursion"), "{error}");
    }
    // Long is not deep.
    let chain = format!("{{{{ 1{} }}}}", "+1".repeat(6000));
    for source in [chain, nots, minus] {
        if let Ok(template) = ChatTemplate::new(&source) {
            template.render(&[], &options()).unwrap();
        }
    }
}

#[test]
fn t12_unknown_names_are_told_with_the_line() {
    for (source, name) in [
        ("\n{{ 1 | nope }}", "nope"),
        ("\n{{ 'a'.nope() }}", "nope"),
        ("\n{{ nope(1) }}", "nope"),
        ("\n{{ 1 is nope }}", "nope"),
    ] {
        let error = render(source, &[], &options()).unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains(name), "{error}");
    }
}

#[test]
fn t13_the_templates_own_message() {
    let template = ChatTemplate::new(LLAMA2).unwrap();
    let error = template
        .render(&messages(&[("user", "a"), ("user", "b")]), &options())
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "chat template: Turns must alternate between user and assistant"
    );
    assert_eq!(
        template
            .render(&messages(&[("user", "a")]), &options())
            .unwrap()
            .text,
        "<s>[INST] a [/INST]"
    );
    let inside = "{% macro m() %}{{ raise_exception('no <tools>') }}{% endmacro %}{{ m() }}";
    assert_eq!(
        render(inside, &[], &options()).unwrap_err().to_string(),
        "chat template: no <tools>"
    );
}

#[test]
fn t16_no_clock_files_or_environment() {
    for name in [
        "now",
        "open",
        "env",
        "environ",
        "os",
        "sys",
        "import",
        "self.environment",
        "load",
        "debug",
        "strftime_now",
    ] {
        let text = render(
            &format!("{{% if {name} is defined %}}there{{% endif %}}"),
            &[],
            &options(),
        )
        .unwrap_or_default();
        assert!(text.is_empty(), "{name}");
    }
    assert!(render("{% include 'other' %}", &[], &options()).is_err());
    assert!(render("{% import '/etc/passwd' as x %}", &[], &options()).is_err());
}

#[test]
fn a_bad_date_is_named() {
    let bad = RenderOptions {
        date: "yesterday".into(),
        ..options()
    };
    assert!(
        render("", &[], &bad)
            .unwrap_err()
            .to_string()
            .starts_with("date: ")
    );
}
