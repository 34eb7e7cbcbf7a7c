/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "bench.h"
#include "cli.h"
#include "commands.h"

static const char *const distribution_names[] = {"uniform", "zipf", NULL};

static void cpu_model(char *out, size_t size)
{
	FILE *f = fopen("/proc/cpuinfo", "re");
	char line[256], *value;

	snprintf(out, size, "unknown");
	while (f && fgets(line, sizeof(line), f)) {
		value = strstr(line, ": ");
		if (strncmp(line, "model name", 10) != 0 || !value)
			continue;
		value[strcspn(value, "\n")] = '\0';
		snprintf(out, size, "%s", value + 2);
		break;
	}
	if (f)
		fclose(f);
}

static json_t *machine_json(void)
{
	struct utsname name = {0};
	char cpu[128];

	uname(&name);
	cpu_model(cpu, sizeof(cpu));
	return json_pack("{s:s, s:I, s:s, s:s}", "cpu", cpu, "cpus",
			 (json_int_t)sysconf(_SC_NPROCESSORS_ONLN), "kernel",
			 name.release, "arch", name.machine);
}

static json_t *times_json(const struct bench_times *times, int64_t rows,
			  uint64_t record)
{
	double n = (double)rows, bytes = n * (double)record;

	return json_pack(
		"{s:f, s:f, s:f, s:f, s:f, s:f}", "seconds_median",
		times->median, "seconds_min", times->min,
		"rows_per_second_median", n / times->median,
		"rows_per_second_best", n / times->min,
		"gigabytes_per_second_median", bytes / times->median * 1e-9,
		"gigabytes_per_second_best", bytes / times->min * 1e-9);
}

static json_t *case_json(const struct bench_plan *plan,
			 const struct bench_result *r, uint64_t record)
{
	return json_pack(
		"{s:s, s:I, s:I, s:o, s:o, s:f, s:f, s:b}", "distribution",
		distribution_names[plan->distribution], "rows",
		(json_int_t)r->rows, "repetitions", (json_int_t)r->repetitions,
		"lookup", times_json(&r->lookup, r->rows, record), "plain",
		times_json(&r->plain, r->rows, record), "ratio_median",
		r->plain.median / r->lookup.median, "ratio_best",
		r->plain.min / r->lookup.min, "identical", (int)r->identical);
}

static void print_loop(const char *name, const struct bench_times *times,
		       int64_t rows, uint64_t record)
{
	double n = (double)rows, bytes = n * (double)record;

	printf("  %-24s %8.2f Mrow/s  %6.2f GB/s   best %8.2f Mrow/s  %6.2f "
	       "GB/s\n",
	       name, n / times->median * 1e-6, bytes / times->median * 1e-9,
	       n / times->min * 1e-6, bytes / times->min * 1e-9);
}

static void print_case(const struct bench_plan *plan,
		       const struct bench_result *r, uint64_t record)
{
	printf("%s, %lld rows, %lld repetitions, medians\n",
	       distribution_names[plan->distribution], (long long)r->rows,
	       (long long)r->repetitions);
	print_loop("engram_lookup", &r->lookup, r->rows, record);
	print_loop("memcpy and convert", &r->plain, r->rows, record);
	printf("  ratio %.2f, best %.2f%s\n",
	       r->plain.median / r->lookup.median, r->plain.min / r->lookup.min,
	       r->identical ? "" : "; THE RESULTS DIFFER");
}

static bool read_plan(struct cli *cli, struct bench_plan *plan, int64_t *layer,
		      int *only)
{
	const char *word = cli_option(cli, "--distribution");
	int64_t threads;

	*only = -1;
	if (!cli_integer(cli, "--layer", 0, INT32_MAX, -1, layer) ||
	    !cli_integer(cli, "--rows", 1, 1 << 24, 196608, &plan->rows) ||
	    !cli_integer(cli, "--repeat", 1, 100000, 0, &plan->repeat) ||
	    !cli_integer(cli, "--threads", 1, 1024, 1, &threads) ||
	    !cli_real(cli, "--seconds", 0.01, 3600, 2, &plan->seconds))
		return false;
	plan->threads = (uint32_t)threads;
	if (word && !strcmp(word, "uniform"))
		*only = BENCH_UNIFORM;
	else if (word && !strcmp(word, "zipf"))
		*only = BENCH_ZIPF;
	else if (word) {
		cli_usage_error("use uniform or zipf",
				"--distribution: unknown word \"%s\"", word);
		return false;
	}
	return true;
}

static enum cli_exit run_cases(struct cli *cli, struct bench_plan *plan,
			       int only, json_t *cases)
{
	uint64_t record = engram_record_bytes(plan->table);
	struct bench_result result;
	struct engram_error err;
	int d;

	for (d = BENCH_UNIFORM; d <= BENCH_ZIPF; d++) {
		if (only >= 0 && d != only)
			continue;
		plan->distribution = (enum bench_distribution)d;
		if (bench_run(plan, &result, &err))
			return cli_fail(cli, &err);
		if (!cli->json)
			print_case(plan, &result, record);
		json_array_append_new(cases, case_json(plan, &result, record));
		if (!result.identical)
			return CLI_FAILED;
	}
	return CLI_OK;
}

static enum cli_exit run_bench(struct cli *cli)
{
	struct bench_plan plan = {0};
	struct engram_layer_info layer;
	engram_table *table;
	enum cli_exit code;
	int64_t layer_id;
	json_t *cases;
	int only;

	if (!read_plan(cli, &plan, &layer_id, &only))
		return CLI_USAGE;
	if (cli_attach(cli, cli->args[0], layer_id, &table) ||
	    engram_layer_info(table, 0, &layer))
		return cli_fail_last(cli);
	plan.table = table;
	cases = json_array();
	if (!cli->json)
		printf("table %s, layer %d: %llu rows of %llu bytes; %s, %u "
		       "%s\n",
		       cli->args[0], layer.layer_id,
		       (unsigned long long)layer.total_rows,
		       (unsigned long long)engram_record_bytes(table),
		       engram_isa_name(engram_cpu_isa()), plan.threads,
		       plan.threads == 1 ? "thread" : "threads");
	code = run_cases(cli, &plan, only, cases);
	if (cli->json && json_array_size(cases))
		cli_print_json(json_pack(
			"{s:s, s:i, s:I, s:I, s:s, s:I, s:o, s:O}", "table",
			cli->args[0], "layer_id", (int)layer.layer_id,
			"table_rows", (json_int_t)layer.total_rows,
			"record_bytes", (json_int_t)engram_record_bytes(table),
			"isa", engram_isa_name(engram_cpu_isa()), "threads",
			(json_int_t)plan.threads, "machine", machine_json(),
			"cases", cases));
	json_decref(cases);
	engram_detach(table);
	return code;
}

static const struct cli_option bench_options[] = {
	{"--layer", "ID", "the layer (the first)"},
	{"--rows", "N", "rows of one repetition (196608)"},
	{"--seconds", "S", "time for each distribution (2)"},
	{"--repeat", "N", "repetitions, instead of a time"},
	{"--distribution", "WORD", "uniform or zipf (both)"},
	{"--threads", "N", "threads of engram_lookup (1)"},
	{0},
};

const struct cli_command cmd_bench = {
	.name = "bench",
	.usage = "TABLE [--threads N] [--seconds S]",
	.summary = "measure lookups on the CPU",
	.details = "\nBeside engram_lookup runs a plain loop in one thread: "
		   "copy each row, convert its\ncodes by a table, scale, round "
		   "to bf16. Each repetition has fresh random ids.\nGB/s count "
		   "the stored bytes of the rows read.",
	.min_args = 1,
	.max_args = 1,
	.options = bench_options,
	.run = run_bench,
};
