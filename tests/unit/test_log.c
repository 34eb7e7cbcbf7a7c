/* SPDX-License-Identifier: Apache-2.0 */
/* The log: quoting, formats, levels, one line a call. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "log.h"

static char text[16384];

/* Send stderr to a file while `write` runs; the text without its time. */
static const char *capture(void (*write)(void))
{
	FILE *file = tmpfile();
	int saved = dup(STDERR_FILENO);
	size_t len;

	assert_non_null(file);
	assert_true(saved >= 0);
	dup2(fileno(file), STDERR_FILENO);
	write();
	dup2(saved, STDERR_FILENO);
	close(saved);
	rewind(file);
	len = fread(text, 1, sizeof(text) - 1, file);
	text[len] = '\0';
	fclose(file);
	return text;
}

static const char *after_time(const char *line)
{
	const char *space = strchr(line, ' ');

	assert_int_equal(strncmp(line, "time=2", 6), 0);
	assert_non_null(space);
	return space + 1;
}

static void say_plain(void)
{
	log_info("ready", LOG_S("table", "demo"), LOG_I("n", -3),
		 LOG_U("max", (uint64_t)INT64_MAX));
}

static void say_quoted(void)
{
	log_warn("two words", LOG_S("empty", ""), LOG_S("null", NULL),
		 LOG_S("quote", "a\"b\\c"), LOG_S("lines", "a\nb\tc"),
		 LOG_S("bad", "x\xff"
			      "y"),
		 LOG_S("utf8", "\xc3\xa9"));
}

static void say_long(void)
{
	char value[8000];

	memset(value, 'x', sizeof(value) - 1);
	value[sizeof(value) - 1] = '\0';
	log_info("long", LOG_S("value", value));
}

static void say_debug(void)
{
	log_debug("hidden");
}

static void say_failure(void)
{
	struct engram_error err;

	engram_error_set(&err, ENGRAM_ENOSPACE, "too little");
	engram_error_fix(&err, "get more");
	engram_error_figures(&err, 2, 1);
	log_failure(LOG_ERROR, "load failed", &err);
}

static void test_logfmt(void **state)
{
	(void)state;
	assert_string_equal(after_time(capture(say_plain)),
			    "level=info msg=ready table=demo n=-3 "
			    "max=9223372036854775807\n");
	assert_string_equal(after_time(capture(say_quoted)),
			    "level=warn msg=\"two words\" empty=\"\" "
			    "null=\"\" quote=\"a\\\"b\\\\c\" "
			    "lines=\"a\\u000ab\\u0009c\" bad=\"x\\ufffdy\" "
			    "utf8=\"\xc3\xa9\"\n");
	assert_string_equal(after_time(capture(say_failure)),
			    "level=error msg=\"load failed\" "
			    "error=\"too little\" name=NoSpace "
			    "fix=\"get more\" needed=2 available=1\n");
}

static void test_json(void **state)
{
	void (*const all[])(void) = {say_plain, say_quoted, say_failure};
	json_t *line;
	size_t i;

	(void)state;
	log_set_format(LOG_JSON);
	for (i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		line = json_loads(capture(all[i]), 0, NULL);
		assert_non_null(line);
		assert_non_null(json_object_get(line, "time"));
		json_decref(line);
	}
	log_set_format(LOG_LOGFMT);
}

static void test_long_line_is_cut(void **state)
{
	const char *line;

	(void)state;
	line = capture(say_long);
	assert_in_range(strlen(line), 4000, 4096);
	assert_ptr_equal(strchr(line, '\n'), line + strlen(line) - 1);
}

static void test_level(void **state)
{
	(void)state;
	assert_string_equal(capture(say_debug), "");
	log_set_level(LOG_DEBUG);
	assert_string_equal(after_time(capture(say_debug)),
			    "level=debug msg=hidden\n");
	log_set_level(LOG_INFO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_logfmt),
		cmocka_unit_test(test_json),
		cmocka_unit_test(test_long_line_is_cut),
		cmocka_unit_test(test_level),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
