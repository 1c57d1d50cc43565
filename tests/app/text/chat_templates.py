"""Chat templates as the known model families write them: what they do, not their words."""

from __future__ import annotations

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content']"
    " + '<|im_end|>' + '\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

LLAMA_2 = """
{%- if messages[0]['role'] == 'system' %}
    {%- set intro = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set intro = '' %}
    {%- set turns = messages %}
{%- endif %}
{%- for turn in turns %}
    {%- if (turn['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Turns must go user, assistant, user, assistant.') }}
    {%- endif %}
    {%- if turn['role'] == 'user' %}
        {{- bos_token + '[INST] ' + (intro if loop.first else '') + turn['content'].strip() }}
        {{- ' [/INST]' }}
    {%- elif turn['role'] == 'assistant' %}
        {{- ' ' + turn['content'].strip() + ' ' + eos_token }}
    {%- endif %}
{%- endfor %}
"""

LLAMA_3 = """
{{- bos_token }}
{%- set today = strftime_now('%d %b %Y') if strftime_now is defined else 'an old day' %}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday is ' + today + '.\\n' + system }}
{{- '<|eot_id|>' }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
    {{- message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """
{{- bos_token }}
{%- for message in messages if message.role != 'system' %}
    {%- if message.role == 'user' %}
        {%- if loop.last and messages[0].role == 'system' %}
            {{- '[INST] ' + messages[0].content + '\\n\\n' + message.content + '[/INST]' }}
        {%- else %}
            {{- '[INST] ' + message.content + '[/INST]' }}
        {%- endif %}
    {%- else %}
        {{- ' ' ~ message.content ~ eos_token }}
    {%- endif %}
{%- endfor %}
"""

QWEN = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}{{- tool | tojson }}{%- endfor %}
{%- endif %}
{%- set ns = namespace(last_user=-1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if message.role == 'user' %}
        {%- set ns.last_user = index %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = message.content | map(attribute='text') | join('') %}
    {%- endif %}
    {%- if message.role == 'tool' %}
        {{- '<tool_response>' + {'id': message.tool_call_id, 'text': content} | tojson }}
        {%- continue %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + ('*' if loop.index0 == ns.last_user else '') + '\\n' }}
    {{- content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

GEMMA = """
{{ bos_token }}
{% if messages[0]['role'] == 'system' %}
    {{ raise_exception('System role not supported') }}
{% endif %}
{% for message in messages %}
    {% if message['role'] == 'assistant' %}
        {% set role = 'model' %}
    {% else %}
        {% set role = message['role'] %}
    {% endif %}
{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<start_of_turn>model\n' }}
{% endif %}
"""

MACROS = """
{%- macro shown(message, mark='#') -%}
    {{ mark }} {{ message.role | upper }}{% if message.name %} ({{ message.name }}){% endif %}:
{{ message.content }}
{%- endmacro -%}
{%- set state = namespace(count=0) -%}
{%- for message in messages -%}
    {%- set state.count = state.count + 1 -%}
    {{ shown(message, mark='#' * state.count) }}
    {{- '\\n' -}}
{%- endfor -%}
{{ state.count }} messages, {{ {'<b>': "é & 'c'"} | tojson(indent=2) }}
{%- if add_generation_prompt %}\n# ASSISTANT:\n{% endif -%}
"""

PARTS = """
{%- for message in messages %}
    {{- message.role + ': ' }}
    {%- for part in message.content %}
        {%- if part.type == 'text' %}{{- part.text }}{%- endif %}
    {%- endfor %}
    {{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- 'assistant: ' }}{% endif %}
"""

TRAINING = """
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- generation %}
            {{- message.content + eos_token }}
        {%- endgeneration %}
    {%- else %}
        {{- '<' + message.role + '>' + message.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<assistant>' }}{% endif %}
"""

CHAT_TEMPLATES = {
    "chatml": CHATML,
    "llama-2": LLAMA_2,
    "llama-3": LLAMA_3,
    "mistral": MISTRAL,
    "qwen": QWEN,
    "gemma": GEMMA,
    "macros": MACROS,
    "parts": PARTS,
    "training": TRAINING,
}
