"""Thirty short notices of payments, each with who paid, when, and how much."""

from __future__ import annotations

import re

import pydantic

from sampling import Requirement
from sampling.requirements import View


class Payment(pydantic.BaseModel):
    """One payment."""

    name: str = pydantic.Field(max_length=40)
    date: str = pydantic.Field(pattern=r"^\d{1,2} [A-Z][a-z]+ \d{4}$")
    amount: float


NOTICES: list[tuple[str, Payment]] = [
    (text, Payment(name=name, date=date, amount=amount))
    for text, name, date, amount in [
        ("Anna Schmidt paid 45.20 euros on 3 May 2024.", "Anna Schmidt", "3 May 2024", 45.20),
        ("On 17 January 2023 we received 120 dollars from Peter Novak.", "Peter Novak", "17 January 2023", 120),
        (
            "Bill 88 of 310.50 euros was settled by Maria Rossi on 9 August 2022.",
            "Maria Rossi",
            "9 August 2022",
            310.5,
        ),
        ("Rent for flat 4: 850 euros, Tom Baker, 1 October 2024.", "Tom Baker", "1 October 2024", 850),
        ("Thank you, Lucy Chen, for your gift of 25 pounds on 24 December 2021.", "Lucy Chen", "24 December 2021", 25),
        ("The 14 June 2023 refund of 19.99 dollars went to Omar Haddad.", "Omar Haddad", "14 June 2023", 19.99),
        ("Jan de Vries transferred 1200 euros on 28 February 2024.", "Jan de Vries", "28 February 2024", 1200),
        ("Received on 5 July 2022: 64.75 francs, from Claire Dubois.", "Claire Dubois", "5 July 2022", 64.75),
        ("Ticket 17 was bought by Ivan Petrov for 38 euros on 11 March 2023.", "Ivan Petrov", "11 March 2023", 38),
        ("Sara Lind owes us nothing more: 72.40 euros came in on 30 April 2024.", "Sara Lind", "30 April 2024", 72.4),
        ("Fee of 15 dollars, paid 2 September 2021 by Kofi Mensah.", "Kofi Mensah", "2 September 2021", 15),
        ("From Elena Costa, 19 November 2022, 430 euros for the piano.", "Elena Costa", "19 November 2022", 430),
        ("David Kim renewed his pass on 8 January 2024 for 99.90 dollars.", "David Kim", "8 January 2024", 99.9),
        ("A deposit of 500 pounds was made by Grace Okoro on 21 May 2023.", "Grace Okoro", "21 May 2023", 500),
        ("On 12 October 2022 Hans Weber bought two tickets for 56 euros.", "Hans Weber", "12 October 2022", 56),
        ("Yuki Tanaka, 27 June 2024, course fee, 210.25 euros.", "Yuki Tanaka", "27 June 2024", 210.25),
        ("The club got 33 euros from Paul Martin on 4 April 2021.", "Paul Martin", "4 April 2021", 33),
        ("Nina Berg returned 180 crowns to us on 15 February 2023.", "Nina Berg", "15 February 2023", 180),
        ("Repair of bike 6, 47.80 euros, Luis Ortega, 22 July 2023.", "Luis Ortega", "22 July 2023", 47.8),
        ("We thank Fatima Zahra, who gave 75 euros on 10 December 2022.", "Fatima Zahra", "10 December 2022", 75),
        ("Oliver Stone paid the last 260 dollars of his loan on 31 March 2024.", "Oliver Stone", "31 March 2024", 260),
        (
            "On 6 September 2023, 12.50 euros were paid by Julia Wolf for parking.",
            "Julia Wolf",
            "6 September 2023",
            12.5,
        ),
        ("Membership 2024: Marco Bianchi, 60 euros, 13 January 2024.", "Marco Bianchi", "13 January 2024", 60),
        ("Aisha Khan sent 145.60 pounds on 18 August 2021.", "Aisha Khan", "18 August 2021", 145.6),
        ("Cash from Ben Carter: 20 dollars, 29 October 2022.", "Ben Carter", "29 October 2022", 20),
        ("Sofia Lopez paid for room 12 on 7 May 2022: 390 euros.", "Sofia Lopez", "7 May 2022", 390),
        ("The bill of 88.15 euros was paid on 25 November 2023 by Erik Dahl.", "Erik Dahl", "25 November 2023", 88.15),
        ("Viktor Hugo Silva donated 1000 euros on 16 April 2023.", "Viktor Hugo Silva", "16 April 2023", 1000),
        ("Amy Wong, library fine, 3.20 dollars, 20 February 2024.", "Amy Wong", "20 February 2024", 3.2),
        ("On 1 June 2022 Karl Huber paid 700 euros for the stage.", "Karl Huber", "1 June 2022", 700),
    ]
]


def prompt(notice: str) -> str:
    """Return the question. An example of an answer does not help, because a model this small copies it."""
    return f"{notice}\n\nWho paid or was paid, when, and how much? Answer as JSON with name, date and amount."


def requirements(notice: str) -> list[Requirement]:
    """
    Return checks that compare an answer with its notice.

    They don't know the right answer: any name, date and number of the text pass.
    """
    numbers = {float(number) for number in re.findall(r"\d+(?:\.\d+)?", notice)}

    def name_is_in_the_text(_text: str, view: View) -> tuple[bool, str]:
        name = view.value.name
        return name in notice and len(name.split()) > 1, f"{name!r} is not a full name in the text"

    def date_is_in_the_text(_text: str, view: View) -> tuple[bool, str]:
        return view.value.date in notice, f"the text does not have the date {view.value.date}"

    def amount_is_in_the_text(_text: str, view: View) -> tuple[bool, str]:
        return view.value.amount in numbers, f"the text does not have the number {view.value.amount:g}"

    return [
        Requirement("the name is in the text", name_is_in_the_text),
        Requirement("the date is in the text", date_is_in_the_text),
        Requirement("the amount is in the text", amount_is_in_the_text),
    ]
