/* SPDX-License-Identifier: Apache-2.0 */
#include "exposition.h"

#include <inttypes.h>

/* Of a label's value with its quotes; of help without. */
static void put_escaped(struct text *out, const char *text, int quotes)
{
	for (; *text; text++) {
		if (*text == '\n')
			text_puts(out, "\\n");
		else if (*text == '\\' || (quotes && *text == '"'))
			text_printf(out, "\\%c", *text);
		else
			text_put(out, text, 1);
	}
}

void expose_family(struct exposition *e, const char *name, const char *type,
		   const char *help)
{
	e->name = name;
	text_printf(&e->out, "# HELP %s ", name);
	put_escaped(&e->out, help, 0);
	text_printf(&e->out, "\n# TYPE %s %s\n", name, type);
}

static void put_name(struct exposition *e, const char *const *labels)
{
	char before = '{';

	text_puts(&e->out, e->name);
	for (; labels && labels[0]; labels += 2) {
		text_printf(&e->out, "%c%s=\"", before, labels[0]);
		put_escaped(&e->out, labels[1], 1);
		text_puts(&e->out, "\"");
		before = ',';
	}
	if (before == ',')
		text_puts(&e->out, "}");
}

void expose_count(struct exposition *e, const char *const *labels,
		  uint64_t value)
{
	put_name(e, labels);
	text_printf(&e->out, " %" PRIu64 "\n", value);
}

void expose_real(struct exposition *e, const char *const *labels, double value)
{
	put_name(e, labels);
	/* bytes of any table come out whole */
	text_printf(&e->out, " %.16g\n", value);
}

void expose_gauge(struct exposition *e, const char *name, const char *help,
		  double value)
{
	expose_family(e, name, "gauge", help);
	expose_real(e, NULL, value);
}

void expose_counter(struct exposition *e, const char *name, const char *help,
		    double value)
{
	expose_family(e, name, "counter", help);
	expose_real(e, NULL, value);
}
